"""JPEGs decoded in part: the pixels of the whole image, warnings of libjpeg are errors, and hostile
data never a crash."""

import io
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import encoded
from made_datasets import made, tree
from PIL import Image
from repository import ROOT
from strategies import examples

from ioprof import _jpeg, jpeg
from ioprof.converters import plan_verification
from ioprof.errors import CommandError, DatasetError
from ioprof.format.dataset import Dataset
from ioprof.jpeg import CorruptJpegError, Decoder, UndecidedJpegError, reduction
from ioprof.loaders import check_loader, make_loader
from ioprof.loaders.base import DECODES, Batch, LoaderOptions, Record
from ioprof.loaders.crops import crop_box, sample_random
from ioprof.loaders.images import Decoding, load_sample

FUZZED: Final = 600
"""Damaged images of the fuzz test; tens of thousands were tried, under the address sanitizer
too."""


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    found = jpeg.installed()
    if found is None or not found.decodes_regions:
        pytest.skip("regions cannot be decoded: no libjpeg.so.62")
    return found


def picture(width: int, height: int, **options: object) -> bytes:
    """Smooth colours with noise on them."""
    rng = np.random.default_rng(width * 1000 + height)
    coarse = Image.fromarray(
        rng.integers(0, 256, (max(1, height // 16), max(1, width // 16), 3), dtype=np.uint8)
    )
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    pixels = smooth + rng.integers(-9, 10, (height, width, 3))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    return encoded(image.convert(str(options.pop("mode", "RGB"))), "JPEG", **options)


def whole(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


# ------------------------------------------------------------------------------------------- pixels

KINDS: Final = {
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:2:0": {"subsampling": "4:2:0"},
    "progressive": {"progressive": True},
    "grey": {"mode": "L"},
    "restarts": {"restart_marker_blocks": 3},
}


@settings(max_examples=examples(60))
@given(
    data=st.data(),
    kind=st.sampled_from(sorted(KINDS)),
    width=st.integers(1, 150),
    height=st.integers(1, 150),
)
def test_a_region_has_the_pixels_of_the_whole_image(decoder, data, kind, width, height):
    """To the bit, whatever the sampling, and wherever the region lies."""
    image = picture(width, height, **KINDS[kind])
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    right, bottom = data.draw(st.integers(left + 1, width)), data.draw(st.integers(top + 1, height))
    assert (width, height) == decoder.size(image)
    assert (
        whole(image)[top:bottom, left:right] == decoder.region(image, (left, top, right, bottom))
    ).all()


@pytest.mark.parametrize("denominator", [2, 4, 8])
def test_a_smaller_region_is_that_of_the_smaller_image(decoder, denominator):
    """As Pillow's draft decodes it."""
    data = picture(513, 403)
    small = Image.open(io.BytesIO(data))
    small.draft("RGB", (513 // denominator, 403 // denominator))
    expected = np.asarray(small)[
        40 // denominator : -(-333 // denominator), 50 // denominator : -(-400 // denominator)
    ]
    assert (expected == decoder.region(data, (50, 40, 400, 333), denominator)).all()


def test_the_reduction_leaves_enough_pixels():
    """The largest that does."""
    sizes = ((447, 900), (448, 448), (900, 1791), (1800, 1800), (9, 9))
    assert [1, 2, 4, 8, 1] == [reduction((0, 0, *size), (224, 224)) for size in sizes]


def test_real_crops_are_those_of_the_whole_image(decoder, sample):
    """PSNR of the sample decoded in part against the whole: p5 is 60 dB or more; here every pixel
    is the same."""
    worst = []
    for number, path in enumerate(sorted(sample.glob("*/*.JPEG"))[::10]):
        data = path.read_bytes()
        size = decoder.size(data)
        assert size is not None, path
        left, top, right, bottom = box = crop_box(*size, sample_random(7, 0, number))
        error = np.square(
            whole(data)[top:bottom, left:right].astype(float) - decoder.region(data, box)
        ).mean()
        worst.append(np.inf if error == 0 else 10 * np.log10(255**2 / error))
    assert np.percentile(worst, 5, method="lower") >= 60


def test_every_way_to_decode_draws_alike(decoder):
    """The same crops and flips, and so the same samples, where nothing is reduced; with a reduction
    nearly so."""
    records = [
        Record(picture(90 + each, 140 - each, **kind), None, 0)
        for each, kind in enumerate(KINDS.values())
    ]
    records.append(Record(encoded(Image.new("CMYK", (80, 60), (10, 200, 30, 40)), "JPEG"), None, 0))
    records.append(Record(encoded(Image.new("RGB", (80, 60), (10, 200, 30)), "PNG"), None, 0))
    for crop, most in ((64, 0), (16, 60)):
        for number, record in enumerate(records):
            found = []
            for decode in DECODES:
                choice = sample_random(3, 1, number)
                found.append(
                    load_sample(
                        record, choice, crop, Decoding.of(LoaderOptions(1, 1, decode=decode))
                    ).astype(int)
                )
                found.append(np.array(choice.random()))
            assert found[1] == found[3] == found[5]
            assert (found[2] == found[4]).all()
            assert np.abs(found[0] - found[2]).max() <= most


# ------------------------------------------------------------------------------------------- damage

Damage = Callable[[bytes, random.Random], bytes]


def scan_start(data: bytes) -> int:
    place = 2
    while data[place + 1] != 0xDA:
        place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return place + 2 + int.from_bytes(data[place + 2 : place + 4])


def half(data: bytes, _: random.Random) -> bytes:
    """Half of a file, with an end marker."""
    return data[: len(data) // 2] + b"\xff\xd9"


def random_bytes(data: bytes, source: random.Random, count: int = 1024) -> bytes:
    """Random bytes within the scan; of few the decoder often finds back."""
    count = min(count, (len(data) - scan_start(data)) // 4)
    place = source.randrange(scan_start(data), len(data) - count)
    return data[:place] + source.randbytes(count) + data[place + count :]


def cut_scan(data: bytes, source: random.Random, count: int = 2000) -> bytes:
    """A piece of the scan is missing."""
    count = min(count, (len(data) - scan_start(data)) // 4)
    place = source.randrange(scan_start(data), len(data) - count)
    return data[:place] + data[place + count :]


DAMAGES: Final[tuple[Damage, ...]] = (half, random_bytes, cut_scan)


def refuses(decoder: Decoder, data: bytes) -> bool:
    try:
        decoder.check(data)
    except CorruptJpegError:
        return True
    return False


def test_real_images_are_refused_when_damaged_and_only_then(decoder, sample):
    """None of 500 real images; of 50 of them each kind of damage, that Pillow lets pass."""
    paths = sorted(sample.glob("*/*.JPEG"))
    assert [] == [path for path in paths if refuses(decoder, path.read_bytes())]
    for damage in DAMAGES:
        found = [
            damage(path.read_bytes(), random.Random(number))
            for number, path in enumerate(paths[::10])
        ]
        assert len(found) == sum(refuses(decoder, data) for data in found), damage.__name__


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory, decoder: Decoder) -> Path:
    """A tree of four images, three of them damaged in ways that Pillow lets pass."""
    good = picture(400, 300, quality=95)
    images = {"good": good}
    for damage in DAMAGES:
        tried = (damage(good, random.Random(seed)) for seed in range(200))
        images[damage.__name__] = next(
            data for data in tried if refuses(decoder, data) and is_tolerated(data)
        )
    places = {name: f"n{place:08d}/{name}.JPEG" for place, name in enumerate(images)}
    return tree(
        tmp_path_factory.mktemp("damaged"), {places[name]: data for name, data in images.items()}
    )


def is_tolerated(data: bytes) -> bool:
    try:
        whole(data)
    except OSError:
        return False
    return True


def test_converters_refuse_leave_out_or_accept_damage(damaged, tmp_path):
    """By `--on-corrupt`, and without it by `--on-error`; a dataset that holds damage does not pass
    `verify --deep`."""
    for image in ("original", "rgb256"):
        for options in ({}, {"on_corrupt": "fail", "on_error": "quarantine"}):
            with pytest.raises(
                CommandError, match=r"cannot be decoded as it was encoded .* --on-corrupt accept"
            ):
                made(damaged, tmp_path / "refused", image=image, force=True, **options)
        for options in ({"on_error": "quarantine"}, {"on_corrupt": "quarantine"}):
            assert 3 == len(
                made(damaged, tmp_path / "left out", image=image, force=True, **options).quarantined
            )
        assert 4 == made(damaged, tmp_path / image, image=image, on_corrupt="accept").records
    assert 3 == plan_verification(tmp_path / "original", deep=True, workers=1).run().num_problems
    assert plan_verification(tmp_path / "rgb256", deep=True, workers=1).run().is_good
    assert plan_verification(tmp_path / "left out", deep=True, workers=1).run().is_good


def batches(dataset: Dataset, **options: object) -> list[Batch]:
    chosen = LoaderOptions(
        **{"batch_size": 4, "num_batches": 2, "workers": 0, "crop": 16, **options}
    )
    check_loader("files", dataset, chosen)
    return list(make_loader("files", dataset, chosen))


@pytest.mark.parametrize("decode", ["roi", "full"])
def test_loaders_refuse_leave_out_or_accept_damage(damaged, tmp_path, decode):
    """Of the batch the good image is left; with `accept` all are what Pillow makes of them."""
    dataset = made(damaged, tmp_path / "data", on_corrupt="accept")
    with pytest.raises(
        DatasetError,
        match=r"libjpeg's warning 1\d\d\); --on-corrupt quarantine leaves such images out",
    ):
        batches(dataset, decode=decode)
    for batch in batches(dataset, decode=decode, on_corrupt="quarantine", num_batches=3):
        assert ([0], (1, 3, 16, 16)) == (batch.labels.tolist(), tuple(batch.images.shape))
        assert {damage.__name__ for damage in DAMAGES} == {
            Path(line.partition(":")[0]).stem for line in batch.left_out
        }
    with pytest.raises(DatasetError, match="all of its images are left out as corrupt"):
        batches(dataset, decode=decode, on_corrupt="quarantine", batch_size=1, num_batches=4)
    accepted, by_pillow = (
        batches(dataset, decode="full", on_corrupt="accept"),
        batches(dataset, decode="pillow"),
    )
    for ours, theirs in zip(accepted, by_pillow, strict=True):
        assert (ours.images == theirs.images).all()
        assert ours.left_out == ()


def test_below_a_region_damage_is_seen_where_that_is_read(decoder):
    """Always by default; otherwise the rows below cost nothing."""
    data = half(picture(200, 200), random.Random())
    with pytest.raises(CorruptJpegError):
        decoder.region(data, (0, 0, 50, 20))
    assert (whole(data)[:20, :50] == decoder.region(data, (0, 0, 50, 20), to_end=False)).all()


def mutated(data: bytes, source: random.Random) -> bytes:
    """A few bytes changed, removed, doubled or cut off, anywhere."""
    changed = bytearray(data)
    for _ in range(source.randint(1, 4)):
        place, count = source.randrange(len(changed)), source.choice((1, 1, 1, 2, 5, 40))
        kind = source.randrange(5)
        if kind == 0:
            changed[place] = source.randrange(256)
        elif kind == 1:
            changed[place : place + count] = source.randbytes(count)
        elif kind == 2:
            del changed[place : place + count]
        elif kind == 3:
            changed[place:place] = changed[place : place + count]
        else:
            changed[source.randrange(2, 700 if len(changed) > 700 else len(changed))] = (
                source.choice((0, 1, 255, 127, 216, 218))
            )
        if len(changed) < 4:
            return bytes(changed)
    return bytes(changed[: source.randrange(len(changed))] if source.random() < 0.05 else changed)


def test_hostile_data_is_an_error_or_an_image(decoder):
    """No crash, no other exception; what is accepted as good has the pixels that Pillow finds."""
    originals = [picture(70, 50, **kind) for kind in KINDS.values()] + [
        picture(300, 20, exif=b"Exif\0\0abc")
    ]
    source, num_same = random.Random(5), 0
    for number in range(FUZZED):
        data = mutated(originals[number % len(originals)], source)
        if (size := decoder.size(data)) is None:
            continue
        width, height = size
        box = (
            width // 3,
            height // 4,
            max(width // 3 + 1, width * 2 // 3),
            max(height // 4 + 1, height * 3 // 4),
        )
        try:
            decoder.check(data)
            pixels = decoder.region(data, box)
        except (CorruptJpegError, UndecidedJpegError):
            continue
        try:
            expected = whole(data)
        except Exception:  # Pillow reads headers by itself, and refuses more of them
            continue
        if expected.shape[:2] == (height, width):
            assert (expected[box[1] : box[3], box[0] : box[2]] == pixels).all()
            num_same += 1
    assert num_same > FUZZED / 20


def test_a_check_stops_at_the_first_warning(decoder):
    """A repeated scan of a progressive image is a warning: any number of them, 33 bytes each, takes
    no longer than one."""
    data = picture(300, 200, progressive=True).removesuffix(b"\xff\xd9")
    repeated = data + data[data.rindex(b"\xff\xda") :] * 50 + b"\xff\xd9"
    assert (0, 0, "") == _jpeg.check(data + b"\xff\xd9")
    assert (1, 115) == _jpeg.check(repeated)[:2]


@pytest.mark.parametrize(
    "end",
    [
        b"",
        b"\xff",
        b"\xff\xff",
        b"\xff\xff\xd9",
        b"\xff\xff\0\xff\xd9",
        b"\xff\0\xff\xd9",
        b"\xff\xd0\xff\xd9",
    ],
)
def test_what_ends_a_scan_is_decided_by_the_library(decoder, end):
    """An end without a marker, with fill bytes before it, or with another one, whether or not it is
    read as far."""
    for kind in KINDS.values():
        data = picture(23, 17, **kind).removesuffix(b"\xff\xd9") + end
        for to_end in (False, True):
            assert _jpeg.decode(data, (0, 0, 23, 17), 1, to_end, True) == _jpeg.decode(
                data, (0, 0, 23, 17), 1, to_end
            )
        assert _jpeg.check(data, True) == _jpeg.check(data)


def test_own_decoding_of_codes_is_the_librarys(decoder):
    """Pixels and verdict of every image and region, damaged or not, are those with libjpeg's own
    decoder of codes."""
    source, num_good, num_bad = random.Random(9), 0, 0
    for number in range(FUZZED):
        kind = list(KINDS.values())[number % len(KINDS)]
        data = picture(
            source.randint(1, 90),
            source.randint(1, 90),
            quality=source.choice((10, 75, 95, 100)),
            **kind,
        )
        data = mutated(data, source) if number % 2 else data
        size = _jpeg.size(data)
        if size is None or size[0] * size[1] > 100_000:
            continue
        left, top = source.randrange(size[0]), source.randrange(size[1])
        box = (left, top, source.randint(left + 1, size[0]), source.randint(top + 1, size[1]))
        for to_end in (False, True):
            for denominator in (8, 4, 2, 1):
                found = _jpeg.decode(data, box, denominator, to_end)
                assert found == _jpeg.decode(data, box, denominator, to_end, True)
        assert _jpeg.check(data) == _jpeg.check(data, True)
        num_good += isinstance(found, bytearray)
        num_bad += isinstance(found, tuple)
    assert num_good > FUZZED / 3
    assert num_bad > FUZZED / 20


def test_huge_images_are_left_to_pillow(decoder):
    """65,500 pixels square in the header: no size, and no memory is asked for."""
    data = bytearray(picture(64, 64))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = b"\xff\xdc\xff\xdc"
    assert decoder.size(bytes(data)) is None
    decoder.check(bytes(data))
    with pytest.raises(Exception, match="could be decompression bomb"):
        load_sample(Record(bytes(data), None, 0), None, 16, Decoding.of(LoaderOptions(1, 1)))


# -------------------------------------------------------------------------------------- the library


@pytest.mark.job
def test_the_binary_interface_is_that_of_the_headers(tmp_path):
    """Places in the structures of jpeg_abi.h, and codes, against <jpeglib.h> of a libjpeg of the
    same version."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    members = {
        "width": "image_width",
        "height": "image_height",
        "num_components": "num_components",
        "colours": "jpeg_color_space",
        "out_colours": "out_color_space",
        "scale": "scale_num",
        "scale_denominator": "scale_denom",
        "gamma": "output_gamma",
        "out_width": "output_width",
        "out_height": "output_height",
        "out_components": "output_components",
        "row": "output_scanline",
        "precision": "data_precision",
        "is_progressive": "progressive_mode",
        "max_across": "max_h_samp_factor",
        "max_down": "max_v_samp_factor",
        "least_dct_size": "min_DCT_scaled_size",
        "client": "client_data",
        "source": "src",
        "dc_tables": "dc_huff_tbl_ptrs",
        "ac_tables": "ac_huff_tbl_ptrs",
        "is_arithmetic": "arith_code",
        "restart_interval": "restart_interval",
        "scan_components": "comps_in_scan",
        "scan_component": "cur_comp_info",
        "mcus_per_row": "MCUs_per_row",
        "mcu_rows": "MCU_rows_in_scan",
        "blocks_in_mcu": "blocks_in_MCU",
        "mcu_membership": "MCU_membership",
        "spectrum": "Ss",
        "unread_marker": "unread_marker",
        "entropy": "entropy",
    }
    parts = {
        ("source", "next"): ("jpeg_source_mgr", "next_input_byte"),
        ("source", "left"): ("jpeg_source_mgr", "bytes_in_buffer"),
    }
    errors = {
        "emit": "emit_message",
        "output": "output_message",
        "format": "format_message",
        "code": "msg_code",
        "num_warnings": "num_warnings",
    }
    values = {
        "WARNS_ADOBE_TRANSFORM": "JWRN_ADOBE_XFORM",
        "WARNS_JFIF_VERSION": "JWRN_JFIF_MAJOR",
        "WARNS_COLOUR_PROFILE": "JWRN_BOGUS_ICC",
        "ABI_VERSION": "JPEG_LIB_VERSION",
        "GRAY": "JCS_GRAYSCALE",
        "RGB": "JCS_RGB",
        "YCC": "JCS_YCbCr",
        "DECOMPRESS_BYTES": "sizeof(struct jpeg_decompress_struct)",
        "ERROR_BYTES": "sizeof(struct jpeg_error_mgr)",
    }
    place = "offsetof(struct {}, {}) == offsetof(struct {}, {})".format
    checks = [
        place("decoder", ours, "jpeg_decompress_struct", theirs) for ours, theirs in members.items()
    ]
    checks += [place("errors", ours, "jpeg_error_mgr", theirs) for ours, theirs in errors.items()]
    checks += [place(*ours, *theirs) for ours, theirs in parts.items()]
    unnamed = "offsetof(struct {}, {}) == offsetof({}, {})".format
    for ours, theirs in {
        "dc_table": "dc_tbl_no",
        "ac_table": "ac_tbl_no",
        "dct_size": "DCT_scaled_size",
    }.items():
        checks.append(unnamed("component", ours, "jpeg_component_info", theirs))
    for ours, theirs in {"bits": "bits", "values": "huffval"}.items():
        checks.append(unnamed("huffman", ours, "JHUFF_TBL", theirs))
    checks += [f"(int){ours} == (int){theirs}" for ours, theirs in values.items()]
    lines = [
        "#include <stdio.h>",
        "#include <jpeglib.h>",
        "#include <jerror.h>",
        f'#include "{ROOT}/converters/images/jpeg_abi.h"',
    ]
    lines += [f'_Static_assert({check}, "");' for check in checks]
    program = tmp_path / "places.c"
    program.write_text("\n".join(lines))
    ended = subprocess.run(
        [compiler, "-fsyntax-only", "-std=gnu11", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "jpeglib.h: No such file" in ended.stderr or "JPEG_LIB_VERSION" in ended.stderr:
        pytest.skip("no <jpeglib.h> of version 6.2 (libjpeg62-turbo-dev)")
    assert "" == ended.stderr


def test_a_library_that_is_none_is_refused():
    """No file, or one without the functions; what was loaded before stays."""
    for path, words in (("libnothing.so.0", "libnothing"), ("libc.so.6", "has no jpeg_std_error")):
        with pytest.raises(OSError, match=words):
            _jpeg.load(path)
    if jpeg.installed() is not None:
        assert (64, 48) == _jpeg.size(picture(64, 48))


def test_simplejpeg_gives_the_same(decoder):
    """Where there is no such library: the same sizes, pixels and refusals; it decodes whole
    images."""
    other = jpeg.simple_jpeg()
    if other is None:
        pytest.skip("simplejpeg is not installed")
    for kind in KINDS.values():
        data = picture(90, 60, **kind)
        assert decoder.size(data) == other.size(data)
        assert (decoder.region(data, (5, 7, 80, 50)) == other.region(data, (5, 7, 80, 50))).all()
        assert not refuses(other, data)
        assert refuses(other, half(data, random.Random())) or kind.get("progressive")
    cmyk = encoded(Image.new("CMYK", (80, 60)), "JPEG")
    assert (None, None) == (decoder.size(cmyk), other.size(cmyk))
