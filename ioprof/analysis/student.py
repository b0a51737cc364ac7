"""Student's t: how far a mean of few values may be off."""

from typing import Final

_FEW: Final = (12.71, 4.30, 3.18)
"""The quantile 0.975, for 1 to 3 degrees of freedom."""


def quantile_975(freedom: float) -> float:
    """The quantile 0.975 of Student's t (an interval of 95 %, two-sided), within 1 %; `freedom` is
    at least 1.
    """
    if freedom < len(_FEW) + 1:
        return _FEW[int(freedom) - 1]
    return 1.96 + 2.37 / freedom + 2.8 / freedom**2 + 2.6 / freedom**3
