"""Conversion: the same records in every layout, from every source, with any number of workers, or
nothing at all."""

import io
import os
import resource
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import BAD, ODD, encoded, jpeg, quadrants
from made_datasets import folder_bytes, made, records, tree
from PIL import Image

from ioprof.converters import ConvertOptions, plan_conversion
from ioprof.converters.images.transforms import BadImageError, check_original, rgb256
from ioprof.converters.layouts.lmdb_layout import LmdbLayout, LmdbTuning
from ioprof.converters.layouts.registry import Record, Target
from ioprof.converters.sources.source_kinds import open_source
from ioprof.errors import CommandError, DatasetError, IoprofError
from ioprof.format.dataset import Dataset, ImageFormat

FORMATS = {
    "original": {},
    "jpeg": {"image": "rgb256"},
    "raw": {"image": "rgb256", "encoding": "raw"},
}


# --------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("form", FORMATS)
def test_every_layout_holds_the_same_records(small_tree, tmp_path, form):
    """Same names, labels, bytes and order in `files` and `lmdb`, and so the same digest; the
    manifest is what is on the disk."""
    files = made(small_tree, tmp_path / "files", layout="files", **FORMATS[form])
    one_file = made(small_tree, tmp_path / "lmdb", layout="lmdb", **FORMATS[form])
    assert records(files) == records(one_file)
    assert (files.digest, files.bytes, files.records) == (
        one_file.digest,
        one_file.bytes,
        one_file.records,
    )
    assert (36, files) == (len(records(files)), Dataset.load(files.path))
    assert files.bytes == sum(len(data) for _, _, data in records(files))
    assert ["dataset.json", "train"] == sorted(path.name for path in one_file.path.iterdir())


@pytest.mark.job
@pytest.mark.parametrize(("layout", "form"), [("files", "jpeg"), ("lmdb", "raw")])
def test_the_number_of_workers_changes_nothing(small_tree, tmp_path, layout, form):
    """One process or three: the same bytes in the same files."""
    one, three = (
        made(
            small_tree,
            tmp_path / str(workers) / "dataset",
            layout=layout,
            workers=workers,
            **FORMATS[form],
        )
        for workers in (1, 3)
    )
    assert folder_bytes(one.path) == folder_bytes(three.path)


def test_originals_are_the_source_bytes(small_tree, tmp_path):
    """Each image once, untouched, with the place of its class as its label."""
    dataset = made(small_tree, tmp_path / "dataset", layout="lmdb")
    wnids = sorted(path.name for path in small_tree.iterdir())
    expected = sorted(
        (path.name, wnids.index(path.parent.name), path.read_bytes())
        for path in small_tree.glob("*/*")
    )
    assert expected == sorted(records(dataset))
    assert wnids == [entry.wnid for entry in dataset.classes]
    assert 0 in {label for _, label, _ in records(dataset)}


def test_the_order_is_shuffled_by_the_seed_alone(small_tree, tmp_path):
    """Same seed, same order; another seed, another; classes are mixed; a limit takes the first ones
    and keeps the labels."""
    whole, again, other, first = (
        records(made(small_tree, tmp_path / name, **options))
        for name, options in {"a": {}, "b": {}, "c": {"shuffle_seed": 1}, "d": {"limit": 7}}.items()
    )
    assert whole == again
    assert whole != other
    assert sorted(whole) == sorted(other)
    assert whole[:7] == first
    assert len({label for _, label, _ in first}) > 1


def test_an_lmdb_is_no_larger_than_its_pages(small_tree, tmp_path):
    """Its length is that of its content, not of its map, and it has no holes."""
    dataset = made(small_tree, tmp_path / "dataset", layout="lmdb", image="rgb256", encoding="raw")
    status = (dataset.data_path / "data.mdb").stat()
    assert dataset.bytes < status.st_size < dataset.bytes * 1.03 + 8 * 4096
    assert status.st_blocks * 512 >= status.st_size


def test_an_lmdb_outgrows_its_first_map(small_tree, tmp_path):
    """A map that is too small is enlarged, and the aborted transaction is written again."""
    dataset = made(small_tree, tmp_path / "large", layout="lmdb", image="rgb256", encoding="raw")
    (tmp_path / "small").mkdir()
    target = Target(tmp_path / "small", "train", dataset.image, ("n01",), images=36)
    with LmdbLayout(target, tuning=LmdbTuning(first_map_bytes=1 << 16, batch_records=5)) as layout:
        for number, (name, label, data) in enumerate(records(dataset)):
            layout.add(Record(number, "n01", name, label, data))
        layout.finish()
    assert records(dataset) == records(replace(dataset, path=tmp_path / "small"))


def test_a_map_that_cannot_grow_is_one_line(tmp_path):
    """Where a batch system limits the address space."""
    target = Target(tmp_path, "train", ImageFormat("original", "source"), ("n01",))
    layout = LmdbLayout(target, tuning=LmdbTuning(first_map_bytes=1 << 26))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    record = Record(0, "n01", "a", 0, bytes(5 << 20))
    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), before[1]))
    try:
        with layout, pytest.raises(OSError, match=r"no LMDB map of 134217728 bytes.*ulimit -v"):
            deque((layout.add(record._replace(number=number)) for number in range(20)), maxlen=0)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# ------------------------------------------------------------------------------------------- images


def centre(image: Image.Image) -> tuple[int, ...]:
    return tuple(int(value) for value in np.asarray(image)[128, 128])


@pytest.mark.parametrize("name", ODD)
def test_odd_images_come_out_right(name):
    """256 × 256, RGB, and the colour that the image shows."""
    data, colour = ODD[name]
    image = rgb256(data)
    assert ("RGB", (256, 256)) == (image.mode, image.size)
    assert np.abs(np.subtract(colour, centre(image))).max() <= 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(orientation):
    """An image with an EXIF orientation is rotated as a viewer shows it."""
    upright = quadrants()
    # the transposition that undoes what the tag asks for
    turned_by = {
        2: 0,
        3: 3,
        4: 1,
        5: 5,
        6: 2,
        7: 6,
        8: 4,
    }
    lying = (
        upright.transpose(Image.Transpose(turned_by[orientation])) if orientation > 1 else upright
    )
    exif = Image.Exif()
    exif[0x0112] = orientation
    result = np.asarray(rgb256(encoded(lying, "PNG", exif=exif))).astype(int)
    expected = np.asarray(upright.resize((256, 256), Image.Resampling.NEAREST)).astype(int)
    assert np.abs(result - expected)[[32, 32, 224, 224], [32, 224, 32, 224]].max() <= 8


def test_the_square_is_cut_from_the_centre():
    """Left and right of a wide image go, top and bottom of a tall one."""
    wide = Image.new("RGB", (300, 100), "red")
    wide.paste("blue", (100, 0, 200, 100))
    for image in (wide, wide.transpose(Image.Transpose.ROTATE_90)):
        pixels = np.asarray(rgb256(encoded(image, "PNG")))
        assert (pixels[8:-8, 8:-8] == (0, 0, 255)).all()


def test_originals_with_something_behind_their_end_are_whole():
    """Cameras write more behind the end mark: then decoding decides."""
    data = jpeg() + b"\0" * 500
    assert data is check_original(data)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_of_unknown_range_are_refused(mode):
    """A 32-bit TIFF would come out black; a 16-bit PGM, which Pillow opens as 32 bits too, has a
    known range."""
    with pytest.raises(BadImageError, match="32-bit pixels of unknown range"):
        rgb256(encoded(Image.new(mode, (64, 64), 1), "TIFF"))
    deep = b"P5 64 64 65535\n" + (140 * 257).to_bytes(2) * 64 * 64
    assert (140, 140, 140) == centre(rgb256(deep))


def test_a_hole_in_a_jpeg_is_refused():
    """A page of zeros among its pixels is a copy that failed; zeros in a camera's notes or behind
    the end are none."""
    noise = Image.effect_noise((300, 300), 80).convert("RGB")
    whole = encoded(noise, "JPEG", quality=95, exif=b"Exif\0\0" + bytes(9000)) + bytes(9000)
    place = whole.index(b"\xff\xda") + 8192
    holed = whole[:place] + bytes(4096) + whole[place + 4096 :]
    for use in (check_original, rgb256):
        use(whole)
        with pytest.raises(BadImageError, match="4 KiB of zeros"):
            use(holed)


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "WEBP"])
def test_originals_of_other_formats_are_told_what_to_type(tmp_path, kind):
    """They are no bad images: leaving them out is not the answer."""
    source = tree(tmp_path / "source", {"n01/a.bmp": encoded(quadrants(), kind)})
    with pytest.raises(CommandError) as refusal:
        made(source, tmp_path / "dataset")
    assert (
        f"{source}/n01/a.bmp: {kind}: original keeps only JPEG and PNG: use --image rgb256"
        == str(refusal.value)
    )
    assert 1 == made(source, tmp_path / "dataset", image="rgb256").records


# --------------------------------------------------------------------------------------- bad images


@pytest.mark.parametrize("image", ["original", "rgb256"])
def test_a_bad_image_ends_the_conversion(tmp_path, image):
    """By name and reason, with what to type; nothing is left."""
    for number, (name, (data, reason)) in enumerate(BAD.items()):
        source = tree(tmp_path / str(number), {"n01/good.JPEG": jpeg(), "n02/bad.JPEG": data})
        with pytest.raises(CommandError) as refusal:
            made(source, tmp_path / "dataset", image=image)
        assert 1 == refusal.value.exit_code, name
        assert f"{source}/n02/bad.JPEG: {reason}" in str(refusal.value)
        assert "--on-error quarantine" in str(refusal.value)
        assert not list(tmp_path.glob("*dataset*"))


@pytest.mark.parametrize("layout", ["files", "lmdb"])
def test_bad_images_are_quarantined(tmp_path, layout):
    """They are listed with their reasons and left out; the others keep their labels, also those of
    a class that is all bad."""
    images = {f"n01/{name}.JPEG": data for name, (data, _) in BAD.items()}
    good = {f"n02/{number}.JPEG": jpeg(seed=number) for number in range(5)}
    source = tree(tmp_path / "source", images | good)
    dataset = made(
        source, tmp_path / "dataset", layout=layout, image="rgb256", on_error="quarantine"
    )
    assert {f"n01/{name}.JPEG" for name in BAD} == {entry["name"] for entry in dataset.quarantined}
    assert all(BAD[Path(entry["name"]).stem][1] in entry["reason"] for entry in dataset.quarantined)
    assert [(f"{number}.JPEG", 1) for number in range(5)] == sorted(
        (name, label) for name, label, _ in records(dataset)
    )
    assert dataset == Dataset.load(dataset.path)


def test_nothing_but_bad_images_is_an_error(tmp_path):
    """There would be no record."""
    source = tree(tmp_path / "source", {"n01/a.JPEG": b"", "n01/b.JPEG": b""})
    with pytest.raises(CommandError, match="all 2 images are bad"):
        made(source, tmp_path / "dataset", on_error="quarantine")
    assert not list(tmp_path.glob("*dataset*"))


# ------------------------------------------------------------------------------------------ sources


def test_names_with_spaces_are_kept(tmp_path):
    """The label is the last word of an index line."""
    source = tree(tmp_path / "source", {"n 01/a  photo 7.JPEG": jpeg(), "n 01/ümlaut.JPEG": jpeg()})
    assert ["a  photo 7.JPEG", "ümlaut.JPEG"] == sorted(
        name for name, _, _ in records(made(source, tmp_path / "dataset"))
    )


@pytest.mark.parametrize(
    "name", [b"a\nb.JPEG", b"a\x1b[31m.JPEG", b"\xff.JPEG", "a\u202eb.JPEG".encode()]
)
def test_names_that_could_do_harm_are_refused(tmp_path, name):
    """Line breaks, terminal controls, bytes that are no text."""
    tree(tmp_path / "source", {"n01/good.JPEG": jpeg()})
    Path(os.fsdecode(os.fsencode(tmp_path / "source" / "n01") + b"/" + name)).write_bytes(jpeg())
    with pytest.raises(DatasetError, match="cannot be used"):
        made(tmp_path / "source", tmp_path / "dataset")


def test_images_that_differ_in_their_suffix_stay_apart(tmp_path):
    """`x.png` and `x.jpg` keep their suffix where both would become `x.JPEG`; what still collides
    is refused."""
    images = {"n01/x.png": encoded(quadrants(), "PNG"), "n01/x.jpg": jpeg(), "n01/y.jpg": jpeg()}
    source = tree(tmp_path / "source", images)
    dataset = made(source, tmp_path / "dataset", image="rgb256")
    assert ["x.jpg.JPEG", "x.png.JPEG", "y.JPEG"] == sorted(name for name, _, _ in records(dataset))
    assert ["x.jpg", "x.png", "y.jpg"] == sorted(
        name for name, _, _ in records(made(source, tmp_path / "original"))
    )
    tree(source, {"n01/x.png.JPEG": jpeg()})
    with pytest.raises(DatasetError, match="rename one"):
        made(source, tmp_path / "again", image="rgb256")


def test_a_split_folder_inside_the_source_is_found(tmp_path):
    """`train/` next to `val/`, and the class names next to both."""
    source = tree(
        tmp_path / "source",
        {"train/n01/a.JPEG": jpeg(), "val/n01/b.JPEG": jpeg(), "val/n02/c.JPEG": jpeg()},
    )
    (source / "synset_words.txt").write_text("n01 tench, Tinca tinca\n")
    train = made(source, tmp_path / "train")
    assert (["n01"], ["tench, Tinca tinca"]) == (
        [entry.wnid for entry in train.classes],
        [entry.name for entry in train.classes],
    )
    assert 2 == made(source, tmp_path / "val", split="val").records


def test_files_that_are_no_images_by_their_names_are_counted(tmp_path):
    """By suffix, the most frequent first; .jpe and .jfif are images."""
    names = ["a.jpe", "b.JFIF", "c.txt", "d.GIF", "e.gif", "f", ".DS_Store"]
    source = open_source(
        tree(tmp_path / "source", {f"n01/{name}": jpeg() for name in names}), "train"
    )
    assert ["a.jpe", "b.JFIF"] == [image.name for image in source.images]
    assert {".gif": 2, ".txt": 1, "other": 1, "hidden": 1} == source.passed_over


def test_a_name_that_gets_too_long_is_refused_first(tmp_path):
    """The new suffix counts, in bytes."""
    source = tree(tmp_path / "source", {f"n01/{'ü' * 125}a.jpg": jpeg()})
    with pytest.raises(DatasetError, match=r"more than 255 bytes; rename it"):
        plan_conversion(source, tmp_path / "dataset", ConvertOptions(image="rgb256"))
    assert 1 == made(source, tmp_path / "dataset").records


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ({}, "neither a folder of class folders"),
        ({"readme.txt": b""}, "neither a folder of class folders"),
        ({"n01/readme.txt": b""}, "neither a folder of class folders"),
        ({"n01/a.JPEG": jpeg(), "n02/readme.txt": b""}, "a class folder without images"),
        ({"n01/a.JPEG": jpeg(), "dataset.json": b"{}"}, "already a dataset"),
        ({"ILSVRC2012_img_train.tar": b"\x1f\x8b" + bytes(2000)}, "not a tar"),
        ({"ILSVRC2012_img_train.tar": b""}, "not a tar"),
    ],
)
def test_sources_without_images_are_refused(tmp_path, images, words):
    """With what was expected; bad input is exit code 2."""
    (tmp_path / "source").mkdir()
    with pytest.raises(IoprofError, match=words) as refusal:
        made(tree(tmp_path / "source", images), tmp_path / "dataset")
    assert 2 == refusal.value.exit_code
    assert ["source"] == [path.name for path in tmp_path.iterdir()]


def test_named_pipes_are_not_opened(tmp_path):
    """One among the images is no image; one as the source is refused, and neither blocks."""
    source = tree(tmp_path / "source", {"n01/a.JPEG": jpeg()})
    os.mkfifo(source / "n01" / "pipe.JPEG")
    assert 1 == made(source, tmp_path / "dataset").records
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(CommandError, match="not a tar"):
        made(tmp_path / "pipe.tar", tmp_path / "other")


# -------------------------------------------------------------------------------------- real images


@pytest.mark.job(every=4)
def test_real_images_survive(sample, tmp_path):
    """A hundred of ImageNet: both layouts alike, JPEGs that decode, and within two decibels of what
    raw pixels hold."""
    options: dict[str, Any] = {"limit": 100, "image": "rgb256", "workers": 2}
    files = made(sample, tmp_path / "files", layout="files", **options)
    raw = made(sample, tmp_path / "raw", layout="lmdb", encoding="raw", **options)
    assert files.digest == made(sample, tmp_path / "lmdb", layout="lmdb", **options).digest
    for (_, label, data), (_, raw_label, pixels) in zip(records(files), records(raw), strict=True):
        decoded = np.asarray(Image.open(io.BytesIO(data)), dtype=np.int16)
        assert label == raw_label
        assert np.abs(decoded - np.frombuffer(pixels, np.uint8).reshape(256, 256, 3)).mean() < 8
