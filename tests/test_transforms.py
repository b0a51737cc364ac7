"""The transform of an image: the same bytes with and without the accelerated decoder and resize, at
the requested size."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import BAD, ODD, encoded, quadrants
from images import jpeg as ordinary_jpeg
from made_datasets import made, records, tree
from PIL import Image
from strategies import examples

from ioprof import _resize, jpeg
from ioprof.converters import ConvertOptions
from ioprof.converters.images import transforms
from ioprof.converters.images.transforms import BadImageError, rgb256, transform_for
from ioprof.errors import CommandError

JPEGS = {name: data for name, (data, _) in ODD.items() if data.startswith(b"\xff\xd8")}


def resize_by_pillow(
    pixels: Any, whole: tuple[int, int], box: Any, size: tuple[int, int], part: Any = None
) -> bytes:
    """As `ioprof._resize.resize`, of a whole image. Rows come first; the order within one call
    depends on Pillow's version."""
    assert part in (None, (0, 0, *whole))
    (left, top, right, bottom), height = box, len(pixels)
    image = Image.fromarray(pixels).resize(
        (size[0], height), Image.Resampling.BICUBIC, box=(left, 0, right, height)
    )
    return image.resize(size, Image.Resampling.BICUBIC, box=(0, top, size[0], bottom)).tobytes()


@contextmanager
def pillow_only() -> Iterator[None]:
    """Pillow decodes and resizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "_resize", SimpleNamespace(resize=resize_by_pillow))
        patch.setattr(jpeg, "installed", lambda: None)
        yield


def outcome(data: bytes) -> bytes | str:
    try:
        return rgb256(data, accepts_corrupt=True).tobytes()
    except BadImageError as error:
        return str(error)


def noise(width: int, height: int, **options: object) -> bytes:
    pixels = np.random.default_rng(width * height).integers(
        0, 256, (height, width, 3), dtype=np.uint8
    )
    return encoded(Image.fromarray(pixels), "JPEG", **options)


# --------------------------------------------------------------------------------------------- laws


@settings(max_examples=examples(200))
@given(
    data=st.data(),
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
)
def test_the_native_resize_is_pillows(data, width, height, size):
    """Byte for byte, for any box within any image."""
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = (
        left,
        top,
        data.draw(st.integers(left + 1, width)),
        data.draw(st.integers(top + 1, height)),
    )
    pixels = (
        np.random.default_rng(width).choice([0, 17, 128, 255], (height, width, 3)).astype(np.uint8)
    )
    assert resize_by_pillow(pixels, (width, height), box, size) == _resize.resize(
        pixels, (width, height), box, size
    )


@settings(max_examples=examples(200))
@given(
    data=st.data(),
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
)
def test_a_part_of_an_image_is_resized_as_the_whole(data, width, height, size):
    """Byte for byte, where it holds what the filter needs; otherwise it is refused, and nothing
    else is read."""
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = (
        left,
        top,
        data.draw(st.integers(left + 1, width)),
        data.draw(st.integers(top + 1, height)),
    )
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    margins = [
        2 + math.ceil(2 * max(1.0, length / out))
        for length, out in ((box[2] - left, size[0]), (box[3] - top, size[1]))
    ]
    first = max(0, left - margins[0]), max(0, top - margins[1])
    last = min(width, box[2] + margins[0]), min(height, box[3] + margins[1])
    part, shape = (
        pixels[first[1] : last[1], first[0] : last[0]],
        (last[0] - first[0], last[1] - first[1]),
    )
    expected = _resize.resize(pixels, (width, height), box, size)
    assert expected == _resize.resize(
        np.ascontiguousarray(part), (width, height), box, size, (*first, *shape)
    )
    if shape[0] > 1:
        narrow = np.ascontiguousarray(part[:, : shape[0] // 2])
        with suppress(ValueError):
            assert expected == _resize.resize(
                narrow, (width, height), box, size, (*first, narrow.shape[1], shape[1])
            )


@pytest.mark.parametrize(
    "part",
    [(-1, 0, 4, 4), (0, 0, 5, 4), (1, 0, 4, 4), (0, 1, 4, 4), (0, 0, 0, 4), (2**31 - 1, 0, 4, 4)],
)
def test_the_native_resize_takes_no_part_outside(part):
    """Nor one with too few pixels for the filter."""
    with pytest.raises(ValueError, match="not a box within it"):
        _resize.resize(bytes(48), (4, 4), (0, 0, 4, 4), (2, 2), part)
    with pytest.raises(ValueError, match="lacks pixels that the filter needs"):
        _resize.resize(bytes(24), (4, 4), (0, 0, 4, 4), (2, 2), (0, 0, 2, 4))


@pytest.mark.parametrize(
    ("width", "height"), [(900, 300), (300, 900), (500, 375), (256, 256), (260, 256), (40, 30)]
)
@pytest.mark.parametrize("resize", ["square", "strict", "short"])
def test_only_what_the_crop_needs_is_decoded(width, height, resize):
    """The same pixels as from the whole image, by fewer decoded ones; but for `short`, which crops
    nothing."""
    decoder = jpeg.installed()
    if decoder is None or not decoder.decodes_regions:
        pytest.skip("there is no libjpeg-turbo")
    boxes: list[Any] = []

    class Counting:
        decodes_regions, size, check = True, staticmethod(decoder.size), staticmethod(decoder.check)

        def region(self, data: bytes, box: Any, *rest: Any) -> Any:
            boxes.append(box)
            return decoder.region(data, box, *rest)

    for sampling in ("4:2:0", "4:4:4"):
        data = noise(width, height, subsampling=sampling, quality=85)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jpeg, "installed", Counting)
            found = rgb256(data, 256, resize)
        with pillow_only():
            assert found.tobytes() == rgb256(data, 256, resize).tobytes()
        left, top, right, bottom = boxes[-1]
        side, margin = min(width, height), 2 * (3 + 2 * max(1.0, min(width, height) / 256))
        most = (
            width * height
            if resize == "short"
            else min(width, side + margin) * min(height, side + margin)
        )
        assert (right - left) * (bottom - top) <= most


@pytest.mark.parametrize("box", [(0, 0, 5, 4), (-1, 0, 4, 4), (2, 0, 2, 4), (0, 0, 4, 5)])
def test_the_native_resize_takes_no_box_outside(box):
    """Nor an image of another length than its size says."""
    with pytest.raises(ValueError, match="not a box within it"):
        _resize.resize(bytes(48), (4, 4), box, (2, 2))
    with pytest.raises(ValueError, match="not an RGB image of this size"):
        _resize.resize(bytes(47), (4, 4), (0, 0, 4, 4), (2, 2))


@pytest.mark.parametrize(
    "data",
    [
        *JPEGS.values(),
        *(data for data, _ in BAD.values()),
        *(
            noise(70, 50, subsampling=sampling, quality=quality)
            for sampling in ("4:4:4", "4:2:2", "4:2:0")
            for quality in (40, 95)
        ),
        noise(1030, 1025),
        noise(9, 700),
        noise(200, 150)[:-200] + b"\xff\xd9",
        noise(200, 150).replace(b"\xff\xda", b"\xff\xda\x00", 1),
    ],
)
def test_the_accelerated_decoder_changes_nothing(data):
    """The same pixels or the same message as with Pillow alone, for good, odd and bad images."""
    found = outcome(data)
    with pillow_only():
        assert outcome(data) == found


def test_real_images_are_the_same_with_and_without_accelerators(sample):
    """Every fifth of 500."""
    files = [path.read_bytes() for path in sorted(sample.glob("*/*.JPEG"))[::5]]
    image = ConvertOptions(image="rgb256").image_format
    found = [transform_for(image)(data) for data in files]
    with pillow_only():
        assert [transform_for(image)(data) for data in files] == found


@pytest.mark.parametrize("size", [(70_000, 3), (3, 70_000)])
def test_an_image_longer_than_any_jpeg_is_resized(size):
    """As by Pillow."""
    data = encoded(Image.effect_noise(size, 50), "PNG")
    found = outcome(data)
    with pillow_only():
        assert outcome(data) == found


@given(data=st.binary(max_size=200), place=st.integers(0, 2000))
def test_damage_is_a_reason_and_never_a_crash(data, place):
    """An image, or a few words; nothing else is raised."""
    good = JPEGS["rgb"]
    for hostile in (data, b"\xff\xd8\xff" + data, good[:place] + data + good[place + len(data) :]):
        assert outcome(hostile)


# ------------------------------------------------------------------------------ sizes and encodings


@pytest.mark.parametrize("side", [1, 64, 300])
@pytest.mark.parametrize(("resize", "shape"), [("square", (1, 1)), ("short", (2, 3))])
def test_size_is_of_the_square_or_of_the_shorter_side(side, resize, shape):
    """A picture of 90 × 60: a square of that side, or 3 by 2."""
    for turned in (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180):
        image = rgb256(
            encoded(Image.effect_noise((90, 60), 50).transpose(turned), "PNG"), side, resize
        )
        expected = (round(side * shape[1] / shape[0]), side)
        assert sorted(expected) == sorted(image.size)


def test_short_cuts_nothing_off():
    """The corners of the source are those of the result."""
    pixels = np.asarray(
        rgb256(encoded(quadrants().resize((128, 64), Image.Resampling.NEAREST), "PNG"), 64, "short")
    )
    assert [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)] == [
        tuple(pixels[y, x]) for y, x in ((0, 0), (0, -1), (-1, 0), (-1, -1))
    ]


def test_a_strip_of_pixels_does_not_become_gigabytes():
    """It is a bad image for a shorter side, and a good one for the square."""
    strip = encoded(Image.new("RGB", (30_000, 1)), "PNG")
    with pytest.raises(BadImageError, match="a shorter side of 256 would make it 7680000 x 256"):
        rgb256(strip, 256, "short")
    assert (256, 256) == rgb256(strip).size


def test_encodings_hold_the_same_pixels(small_tree, tmp_path):
    """PNG and raw exactly, JPEG nearly; the names end as they should."""
    options = {"image": "rgb256", "size": 96}
    png, raw, lossy = (
        made(small_tree, tmp_path / kind, encoding=kind, **options)
        for kind in ("png", "raw", "jpeg")
    )
    for (name, label, data), (_, same, pixels), (_, _, lossy_data) in zip(
        records(png), records(raw), records(lossy), strict=True
    ):
        decoded = np.asarray(Image.open(io.BytesIO(data)))
        assert (".png", label, (96, 96, 3)) == (name[-4:], same, decoded.shape)
        assert decoded.tobytes() == pixels
        assert (
            np.abs(np.asarray(Image.open(io.BytesIO(lossy_data)), dtype=int) - decoded).mean() < 12
        )
    assert (96, "square", None) == (png.image.size, png.image.resize, png.image.quality)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 64}, "--size applies to --image rgb256 only"),
        ({"resize": "short"}, "--resize applies to --image rgb256 only"),
        ({"image": "rgb256", "resize": "warp"}, "choose one of square, short"),
        (
            {"image": "rgb256", "encoding": "raw", "resize": "short"},
            "--encoding raw needs --resize square",
        ),
        ({"image": "rgb256", "size": 0}, "from 1 to 4096"),
        ({"labels": "ssv", "layout": "lmdb"}, "--labels applies to --layout files only"),
        ({"shards": 2}, "--shards applies to --layout lmdb only"),
        ({"shard_bytes": 1 << 20}, "--shard-bytes applies to --layout webdataset only"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, words):
    with pytest.raises(CommandError, match=words):
        ConvertOptions(**options)


# ----------------------------------------------------------------------------- ImageNet's odd files


def test_files_like_the_odd_ones_of_imagenet(tmp_path):
    """The PNG and the CMYK under their names, and the one whose EXIF is broken: all become RGB
    squares, none is left out.

    `original` keeps their bytes.
    """
    files = {
        "n02105855/n02105855_2933.JPEG": ODD["png named jpeg"][0],
        "n01739381/n01739381_1309.JPEG": ODD["cmyk"][0],
        "n04152593/n04152593_17460.JPEG": ODD["broken exif"][0],
        "n02077923/n02077923_14822.JPEG": ODD["grey"][0],
    }
    source = tree(tmp_path / "source", files)
    for _, _, data in records(made(source, tmp_path / "rgb256", image="rgb256", layout="lmdb")):
        image = Image.open(io.BytesIO(data))
        assert ("JPEG", "RGB", (256, 256)) == (image.format, image.mode, image.size)
    kept = {
        f"{name.partition('_')[0]}/{name}": data
        for name, _, data in records(made(source, tmp_path / "original"))
    }
    assert files == kept


def test_a_jpeg_that_lies_on_its_side_is_turned(tmp_path):
    """By its EXIF orientation, which the accelerated decoder does not apply."""
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = encoded(
        quadrants()
        .resize((256, 256), Image.Resampling.NEAREST)
        .transpose(Image.Transpose.ROTATE_90),
        "JPEG",
        exif=exif,
        quality=95,
    )
    pixels = np.asarray(rgb256(lying)).astype(int)
    expected = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)]
    found = [pixels[y, x] for y, x in ((64, 64), (64, 192), (192, 64), (192, 192))]
    assert np.abs(np.subtract(expected, found)).max() < 40
    assert ordinary_jpeg() != lying
