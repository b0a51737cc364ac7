"""One synthetic JPEG of a given file size, whose content costs a decoder about as much as a
photograph.

Photographs have an amplitude spectrum that falls as 1/f, both smooth and textured areas, and edges.
Here: a gradient with a few shapes on it, plus 1/f noise whose strength varies over the image. The
file size is reached by scaling the contrast of both, never by padding.
"""

import io
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ioprof.converters.images.size_distribution import draw_size

TOLERANCE: Final = 0.03
"""Maximum relative error of a file's size."""

_TARGET_ERROR: Final = 0.02  # the search stops below it, or after _MAX_ENCODES
_MAX_ENCODES: Final = 12
_ENCODINGS: Final = (
    (1.4, 70, "4:2:0"),
    (2.2, 80, "4:2:0"),
    (3.2, 92, "4:2:0"),
    (math.inf, 96, "4:4:4"),
)
"""Maximum bits per pixel → JPEG quality and chroma subsampling, as in ILSVRC2012's training set."""

Pixels = NDArray[np.float32]


@dataclass(frozen=True)
class Encoding:
    """JPEG encoder settings."""

    quality: int
    subsampling: str

    def encode(self, pixels: Pixels) -> bytes:
        """The JPEG file of `pixels` (height × width × RGB, around 0, ±128)."""
        stream = io.BytesIO()
        image = Image.fromarray(np.clip(pixels + 128, 0, 255).astype(np.uint8))
        image.save(stream, "JPEG", quality=self.quality, subsampling=self.subsampling)
        return stream.getvalue()


def synthetic_jpeg(target_bytes: int, random: np.random.Generator) -> bytes:
    """A JPEG of `target_bytes` within `TOLERANCE`; the same state of `random` gives the same
    bytes.
    """
    width, height = draw_size(target_bytes, random)
    scene = _scene(width, height, random)
    texture = _texture(width, height, random)
    bits_per_pixel = 8 * target_bytes / (width * height)
    quality, subsampling = next(
        (quality, sampling) for limit, quality, sampling in _ENCODINGS if bits_per_pixel < limit
    )
    return _search(target_bytes, scene, texture, Encoding(quality, subsampling))


def _search(target: int, scene: Pixels, texture: Pixels, encoding: Encoding) -> bytes:
    # The size is nearly a power of the strength: regula falsi on the logarithms, restricted to the
    # bracket.
    low: tuple[float, float | None] = (1e-3, None)
    high: tuple[float, float | None] = (1e3, None)
    strength, best = 10.0, b""
    for _ in range(_MAX_ENCODES):
        data = encoding.encode(
            scene * np.float32(min(1.0, strength / 6)) + texture * np.float32(strength)
        )
        error = math.log(len(data) / target)
        best = min(best, data, key=lambda each: abs(math.log(max(1, len(each)) / target)))
        if abs(error) < _TARGET_ERROR:
            break
        if error < 0:
            low = (strength, error)
        else:
            high = (strength, error)
        strength = _next_strength(low, high)
    return best


def _next_strength(low: tuple[float, float | None], high: tuple[float, float | None]) -> float:
    (weak, below), (strong, above) = low, high
    if below is not None and above is not None:
        share = min(0.9, max(0.1, below / (below - above)))
        return math.exp(math.log(weak) + share * math.log(strong / weak))
    if below is not None:
        return min(weak * math.exp(-below * 1.6) * 1.05, strong)
    assert above is not None
    return max(strong * math.exp(-above * 1.6) / 1.05, weak)


# ------------------------------------------------------------------------------------ image content


def _scene(width: int, height: int, random: np.random.Generator) -> Pixels:
    corners = random.integers(40, 216, (2, 2, 3), dtype=np.uint8)
    image = Image.fromarray(corners).resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(random.integers(3, 9)):
        x, y = random.random(2) * (width, height)
        across, down = (0.05 + 0.25 * random.random(2)) * min(width, height)
        colour = tuple(int(value) for value in random.integers(20, 236, 3))
        shape = (draw.ellipse, draw.rectangle)[random.integers(2)]
        shape((x - across, y - down, x + across, y + down), fill=colour)
    return np.asarray(image, dtype=np.float32) - 128


def _texture(width: int, height: int, random: np.random.Generator) -> Pixels:
    light = _noise(width, height, random)
    where = _noise(8, 8, random)
    strength = Image.fromarray(np.exp(0.7 * where)).resize(
        (width, height), Image.Resampling.BILINEAR
    )
    texture = np.empty((height, width, 3), np.float32)
    texture[:] = light[:, :, None]
    chroma_width, chroma_height = -(-width // 2), -(-height // 2)
    for channel, share in ((0, 0.35), (2, 0.35)):
        colour = Image.fromarray(_noise(chroma_width, chroma_height, random)).resize(
            (width, height), Image.Resampling.BILINEAR
        )
        texture[:, :, channel] += np.float32(share) * np.asarray(colour)
    texture *= np.asarray(strength)[:, :, None]
    return texture


def _noise(width: int, height: int, random: np.random.Generator) -> Pixels:
    """Noise whose amplitude falls as 1/f, of mean 0 and variance 1."""
    rows = np.fft.fftfreq(height).astype(np.float32)[:, None]
    columns = np.fft.rfftfreq(width).astype(np.float32)[None, :]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf
    spectrum = (
        random.standard_normal((*frequency.shape, 2), np.float32).view(np.complex64)[:, :, 0]
        / frequency
    )
    noise: Pixels = np.fft.irfft2(spectrum, (height, width)).astype(np.float32)
    noise /= noise.std()
    return noise
