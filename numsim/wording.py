"""Numbers and lists as tables and sentences show them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def cell(x: float, digits: int = 9) -> int | float | str:
    """A number for a table: an int if it is whole, else rounded to some significant digits (series hold it exactly).

    >>> cell(2048.0), cell(10.000133514404297), cell(float("inf"))
    (2048, 10.0001335, 'inf')
    """
    if not math.isfinite(x):
        return str(x)  # JSON has no infinity and no NaN
    return int(x) if x == int(x) and abs(x) < 10**digits else float(f"{x:.{digits}g}")


def percent(share: float) -> str:
    """A share in percent, with as many digits as it takes to tell a small one from none.

    >>> percent(0.443618), percent(0.0556), percent(0.00016), percent(1e-7), percent(0.0), percent(1.0)
    ('44 %', '5.6 %', '0.016 %', 'under 0.001 %', '0 %', '100 %')
    """
    p = 100 * share
    if p == 0 or abs(p) >= 9.95:
        return f"{p:.0f} %"
    return f"{p:.2g} %" if abs(p) >= 0.001 else "under 0.001 %"


def listed(items: Sequence[str], last: str = "and") -> str:
    """A list as in a sentence.

    >>> listed(["FP16", "BF16", "E4M3"])
    'FP16, BF16 and E4M3'
    """
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"
