"""Student's t: how far a mean of few values may be off."""

from math import pi, tan
from statistics import NormalDist


def quantile(probability: float, freedom: float) -> float:
    """That of Student's t, by the expansion of Fisher and Cornish (1960) around that of the normal
    distribution: within 1 % at 0.975 (an interval of 95 %, two-sided), and up to 0.999 within 0.4 %
    from 5 degrees of freedom on. Below 2 degrees it is that of one degree, which is larger.
    """
    if freedom < 2:
        return tan(pi * (probability - 0.5))
    z = NormalDist().inv_cdf(probability)
    terms = (
        z**3 + z,
        5 * z**5 + 16 * z**3 + 3 * z,
        3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z,
        79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z,
    )
    scales = (4, 96, 384, 92160)
    series: float = sum(
        term / (scale * freedom**power)
        for power, (term, scale) in enumerate(zip(terms, scales, strict=True), 1)
    )
    return z + series
