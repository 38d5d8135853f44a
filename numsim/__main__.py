"""``python -m numsim`` is the same program as ``numsim``."""

import sys

from numsim.cli import main

if __name__ == "__main__":
    sys.exit(main())
