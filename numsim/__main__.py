"""``python -m numsim`` is the same program as ``numsim``."""

import sys

if __name__ == "__main__":
    try:
        from numsim.cli import main
    except KeyboardInterrupt:  # while numpy is still loading
        sys.exit(130)
    sys.exit(main())
