"""The size distribution of ImageNet's images: bytes, width and height.

Bytes: measured on 1,000 images of ILSVRC2012's training set, one per class. Width and height given
the bytes: on 500 of them.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

BYTE_QUANTILES: Final = {
    0.0: 2_135,
    0.05: 16_003,
    0.25: 57_147,
    0.50: 107_073,
    0.75: 145_991,
    0.95: 211_865,
    0.99: 373_682,
    1.0: 723_977,
}
"""Share of the images that are smaller → bytes. Linear interpolation of the logarithms also gives
the right mean, 110 kB."""

_COMMON_SIZES: Final = {
    (500, 375): 0.42,
    (500, 333): 0.20,
    (375, 500): 0.13,
    (333, 500): 0.09,
    (500, 334): 0.05,
    (500, 400): 0.04,
    (500, 500): 0.03,
    (334, 500): 0.02,
    (500, 281): 0.02,
}
"""(width, height) → share, among the images whose longer side is 500."""

_ASPECT_RATIOS: Final = {4 / 3: 0.46, 3 / 2: 0.20, 3 / 4: 0.16, 2 / 3: 0.08, 1.0: 0.10}
"""Width / height → share, among the other images."""

_SIZES_BY_BYTES: Final = (
    (16_003, 0.00, (9, 18, 33, 66, 140)),
    (35_000, 0.17, (42, 82, 115, 175, 250)),
    (57_147, 0.33, (52, 130, 180, 270, 370)),
    (80_000, 0.68, (125, 190, 260, 400, 540)),
    (107_073, 0.82, (150, 220, 320, 400, 560)),
    (211_865, 0.95, (170, 250, 330, 420, 600)),
    (373_682, 0.83, (220, 340, 520, 760, 1080)),
    (1_000_000, 0.00, (480, 840, 1300, 1900, 2400)),
)
"""Maximum bytes → share of images whose longer side is 500; thousands of pixels of the others at
p5, p25, p50, p75, p95."""

_HEADER_BYTES: Final = 650  # of a JPEG
_MIN_BITS_PER_PIXEL: Final = 0.5  # a uniform image takes 0.14


def target_bytes(images: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Bytes of each of `images` images, in random order: stratified sampling, one value from each
    of `images` equal strata.
    """
    shares = (np.arange(images) + random.random(images)) / images
    places, values = np.array(list(BYTE_QUANTILES)), np.log(list(BYTE_QUANTILES.values()))
    drawn: NDArray[np.int64] = np.exp(np.interp(shares, places, values)).round().astype(np.int64)
    return random.permutation(drawn)


def draw_size(target: int, random: np.random.Generator) -> tuple[int, int]:
    """Width and height of an image of `target` bytes."""
    share, thousands = next(
        (share, thousands) for limit, share, thousands in _SIZES_BY_BYTES if target <= limit
    )
    if random.random() < share:
        sizes = list(_COMMON_SIZES)
        return sizes[random.choice(len(sizes), p=_normalize(_COMMON_SIZES.values()))]
    drawn = 1000 * np.interp(random.random(), (0.05, 0.25, 0.5, 0.75, 0.95), thousands)
    pixels = min(drawn, 8 * (target - _HEADER_BYTES) / _MIN_BITS_PER_PIXEL)
    aspect = list(_ASPECT_RATIOS)[
        random.choice(len(_ASPECT_RATIOS), p=_normalize(_ASPECT_RATIOS.values()))
    ]
    return max(32, round(np.sqrt(pixels * aspect))), max(32, round(np.sqrt(pixels / aspect)))


def _normalize(weights: Iterable[float]) -> NDArray[np.float64]:
    values = np.array(list(weights))
    values /= values.sum()
    return values
