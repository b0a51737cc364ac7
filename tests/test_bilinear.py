"""The bilinear filter in C: the bytes that torch gives, in the planes of a batch, whatever the
sizes."""

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiling import compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from images import encoded
from PIL import Image
from repository import PROGRAMS, ROOT
from strategies import examples

from ioprof import _bilinear, jpeg
from ioprof.loaders import images as samples
from ioprof.loaders.base import LoaderOptions, Record
from ioprof.loaders.crops import sample_random
from ioprof.loaders.images import Decoding, load_sample

CASES = 300
"""Of the sanitizers' run: a resize and a JPEG each."""

TORCH_IS_FAST = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
needs_torch = pytest.mark.skipif(
    not TORCH_IS_FAST, reason="torch has no AVX2 here, and another filter"
)

sides = st.one_of(st.integers(1, 12), st.integers(1, 600))


def noise(width: int, height: int, seed: int, *, extreme: bool) -> np.ndarray:
    """Random bytes; or only 0 and 255, of which the sums are largest."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return np.where(pixels > 127, 255, 0).astype(np.uint8) if extreme else pixels


def resized(
    pixels: np.ndarray,
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    *,
    flipped: bool,
    plain: bool,
) -> np.ndarray:
    out = np.empty((3, size[1], size[0]), np.uint8)
    _bilinear.resize_planes(
        pixels, (pixels.shape[1], pixels.shape[0]), box, out, size, flipped, plain
    )
    return out


def by_torch(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    planes = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
    return torch.nn.functional.interpolate(
        planes, (size[1], size[0]), mode="bilinear", antialias=True
    )[0].numpy()


def planes_by_torch(
    pixels: np.ndarray,
    _: tuple[int, int],
    box: tuple[int, int, int, int],
    out: np.ndarray,
    *rest: Any,
) -> None:
    """As `ioprof._bilinear.resize_planes`."""
    (left, top, right, bottom), (size, is_flipped) = box, rest
    planes = by_torch(np.array(pixels[top:bottom, left:right]), size)
    out[:] = planes[:, :, ::-1] if is_flipped else planes


@needs_torch
@settings(max_examples=examples(150))
@given(
    data=st.data(), width=sides, height=sides, out=st.tuples(sides, sides), extreme=st.booleans()
)
def test_the_bytes_are_torchs(data, width, height, out, extreme):
    """Of any box and size, larger or smaller, flipped or not, with the processor's vectors and
    without."""
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    right, bottom = data.draw(st.integers(left + 1, width)), data.draw(st.integers(top + 1, height))
    pixels = noise(width, height, width * 1000 + height, extreme=extreme)
    expected = by_torch(pixels[top:bottom, left:right], out)
    for plain in (False, True):
        assert (
            expected == resized(pixels, (left, top, right, bottom), out, flipped=False, plain=plain)
        ).all()
        assert (
            expected[:, :, ::-1]
            == resized(pixels, (left, top, right, bottom), out, flipped=True, plain=plain)
        ).all()


@needs_torch
def test_every_length_has_torchs_weights():
    """A row of every length to 224 pixels: a weight that differed by one of 2^14 would change some
    of 672 sums."""
    for length in range(1, 520):
        pixels = noise(length, 3, length, extreme=length % 2 == 0)
        expected = by_torch(pixels, (224, 3))
        assert (
            expected == resized(pixels, (0, 0, length, 3), (224, 3), flipped=False, plain=False)
        ).all(), length
        turned = np.ascontiguousarray(pixels.transpose(1, 0, 2))
        expected = by_torch(turned, (3, 224))
        assert (
            expected == resized(turned, (0, 0, 3, length), (3, 224), flipped=False, plain=False)
        ).all(), length


def test_wrong_sizes_are_refused():
    """Nothing is read or written beyond a buffer."""
    pixels, out = np.zeros((4, 5, 3), np.uint8), np.zeros((3, 2, 2), np.uint8)
    for size, box, out_size in (
        ((5, 5), (0, 0, 5, 4), (2, 2)),
        ((5, 4), (0, 0, 6, 4), (2, 2)),
        ((5, 4), (2, 0, 2, 4), (2, 2)),
        ((5, 4), (-1, 0, 2, 4), (2, 2)),
        ((5, 4), (0, 0, 5, 4), (2, 3)),
        ((5, 4), (0, 0, 5, 4), (0, 2)),
    ):
        with pytest.raises(ValueError, match="not an RGB image of this size"):
            _bilinear.resize_planes(pixels, size, box, out, out_size, False)
    out.flags.writeable = False
    with pytest.raises((BufferError, TypeError, ValueError)):
        _bilinear.resize_planes(pixels, (5, 4), (0, 0, 5, 4), out, (2, 2), False)


@needs_torch
@pytest.mark.parametrize("number", range(6))
def test_samples_are_resized_as_by_torch(number, monkeypatch):
    """The same pixels, of raw records, JPEGs and what Pillow decodes, in a place of a batch and by
    themselves."""
    pixels = noise(190, 130, number, extreme=False)
    records = [Record(pixels.tobytes(), (130, 190, 3), 0)]
    records += [Record(encoded(Image.fromarray(pixels), kind), None, 0) for kind in ("JPEG", "PNG")]
    decoding = Decoding.of(LoaderOptions(1, 1))
    for record in records:
        batch = np.zeros((2, 3, 64, 64), np.uint8)
        alone = load_sample(record, sample_random(1, 0, number), 64, decoding)
        load_sample(record, sample_random(1, 0, number), 64, decoding, out=batch[1])
        with monkeypatch.context() as patched:
            patched.setattr(samples, "resize_planes", planes_by_torch)
            assert (alone == load_sample(record, sample_random(1, 0, number), 64, decoding)).all()
        assert (alone == batch[1]).all()
        assert not batch[0].any()


@pytest.mark.system(every=3)
def test_sanitizers_find_nothing(tmp_path):
    """No access outside of a buffer and no undefined behaviour, of images of random sizes, some of
    them damaged."""
    library = next(iter(jpeg._libraries()))
    runtime = subprocess.run(
        [compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("the C compiler lacks the library of -fsanitize=address")
    built = []
    for name, sources in (("_bilinear", ["bilinear.c"]), ("_jpeg", ["huffman.c", "jpeg.c"])):
        built.append(tmp_path / f"{name}.so")
        command = [
            compiler(),
            "-std=gnu11",
            "-O1",
            "-g",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            "-DPy_LIMITED_API=0x030B0000",
        ]
        command += [
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            f"-I{sysconfig.get_paths()['include']}",
        ]
        command += [str(ROOT / "converters" / "images" / source) for source in sources]
        ended = subprocess.run(
            [*command, "-o", str(built[-1]), "-lm", "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (0, "") == (ended.returncode, ended.stderr)
    command = [
        sys.executable,
        str(PROGRAMS / "sanitized_images.py"),
        *map(str, built),
        library,
        str(CASES),
        "1",
    ]
    variables = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert (0, "done\n") == (ended.returncode, ended.stdout), ended.stderr[-3000:]
