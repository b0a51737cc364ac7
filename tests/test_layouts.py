"""Layouts: what other libraries read of them, shards, lists of labels, and going on after a kill at
any point."""

import contextlib
import hashlib
import io
import json
import os
import tarfile
import warnings
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import jpeg, quadrants
from made_datasets import folder_bytes, made, records, tree
from PIL import Image
from strategies import examples

from ioprof.converters.layouts import lustre_striping
from ioprof.converters.layouts.lmdb_layout import LmdbTuning
from ioprof.converters.layouts.registry import LAYOUTS, Layout, Record, Target
from ioprof.converters.layouts.webdataset_layout import read_samples
from ioprof.errors import CommandError, DatasetError
from ioprof.foreign.tensorprotos import decode
from ioprof.format.dataset import Dataset, ImageFormat
from ioprof.loaders import open_records

WNIDS = ("n01", "n02", "n03")

VARIANTS = {
    "files": {"layout": "files"},
    "ssv": {"layout": "files", "labels": "ssv"},
    "lmdb": {"layout": "lmdb"},
    "sharded lmdb": {"layout": "lmdb", "shards": 3},
    "webdataset": {"layout": "webdataset", "shard_bytes": 1 << 16},
    "parquet": {"layout": "parquet", "shard_bytes": 1 << 16},
    "raw": {"layout": "raw"},
}


def some_records(count: int = 40, seed: int = 0) -> list[Record]:
    """Of many lengths; every seventh image of the source was bad."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 12_000, count).tolist()
    places = [place for place in range(2 * count) if place % 7 != 3]
    return [
        Record(
            number,
            WNIDS[number % 3],
            f"{number} a.JPEG".replace(" ", "_"),
            number % 3,
            random.bytes(length),
            places[number],
        )
        for number, length in enumerate(lengths)
    ]


def target(folder: Path, layout: str, **options: object) -> Target:
    folder.mkdir(exist_ok=True)
    fields = {"images": 47, **options}
    return Target(
        folder, "train", ImageFormat("original", "source"), WNIDS, **fields, final=Path("/data/x")
    )


def opened(folder: Path, start: int = 0, **options: object) -> Layout:
    """With LMDB transactions of a few records."""
    more = {"tuning": LmdbTuning(batch_bytes=20_000)} if options["layout"] == "lmdb" else {}
    layout: Layout = LAYOUTS[str(options["layout"])](target(folder, **options), start, **more)
    return layout


def written(folder: Path, **options: object) -> dict[str, str]:
    with opened(folder, **options) as layout:
        for record in some_records():
            layout.add(record)
        layout.finish()
    return content(folder)


def content(folder: Path) -> dict[str, str]:
    """Hashes of all files; of an LMDB, of its records, since which of its pages are used again
    depends on when it was opened."""
    return {
        name: hashlib.sha256(_entries(folder / name) or data).hexdigest()
        for name, data in folder_bytes(folder).items()
    }


def _entries(path: Path) -> bytes:
    if path.name != "data.mdb":
        return b""
    with (
        lmdb.open(str(path.parent), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        return b"".join(key + value for key, value in transaction.cursor())


# ----------------------------------------------------------------------------------------- going on


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Each variant, written without interruption."""
    return {
        name: written(tmp_path_factory.mktemp("whole"), **options)
        for name, options in VARIANTS.items()
    }


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15)
@given(stops=st.lists(st.integers(0, 40), max_size=3), ahead=st.integers(0, 9))
def test_a_layout_resumes_where_it_stopped(undisturbed, tmp_path_factory, variant, stops, ahead):
    """However often it stops without `finish`, and however far the journal is ahead: the same files
    in the end."""
    folder, expected = tmp_path_factory.mktemp("resumed"), some_records()
    journaled = 0
    for stop in [*sorted(stops), len(expected)]:
        with opened(folder, journaled, **VARIANTS[variant]) as layout:
            first = layout.num_durable()
            assert first <= journaled
            for record in expected[first:stop]:
                layout.add(record)
            journaled = min(max(stop, first) + ahead, len(expected))
            if stop == len(expected):
                layout.finish()
    assert undisturbed[variant] == content(folder)


@pytest.mark.parametrize("variant", ["files", "webdataset"])
@given(cut=st.integers(0, 4000), rest=st.binary(max_size=700))
@settings(max_examples=examples(20))
def test_a_torn_end_is_dropped(undisturbed, tmp_path_factory, variant, cut, rest):
    """The last file that was being written, cut anywhere, or with something else behind the cut."""
    folder, expected = tmp_path_factory.mktemp("torn"), some_records()
    with opened(folder, **VARIANTS[variant]) as layout:
        for record in expected[:25]:
            layout.add(record)
    last = folder / "train.txt" if variant == "files" else max((folder / "train").iterdir())
    data = last.read_bytes()
    last.write_bytes(
        data[: max(0, len(data) - cut)] + (rest.replace(b"\n", b"") if variant == "files" else rest)
    )
    with opened(folder, 25, **VARIANTS[variant]) as layout:
        assert layout.num_durable() <= 25
        for record in expected[layout.num_durable() :]:
            layout.add(record)
        layout.finish()
    assert undisturbed[variant] == content(folder)


# --------------------------------------------------------------------------------------- webdataset


def test_every_layout_holds_the_same_records(small_tree, tmp_path):
    """Names, labels, bytes and order, and so the digest; shards or not."""
    datasets = {
        name: made(small_tree, tmp_path / name, image="rgb256", **options)
        for name, options in VARIANTS.items()
    }
    assert 1 == len({dataset.digest for dataset in datasets.values()})
    assert all(dataset == Dataset.load(dataset.path) for dataset in datasets.values())
    assert (None, 3) == (datasets["lmdb"].shards, datasets["sharded lmdb"].shards)
    tars = datasets["webdataset"].shard_paths()
    assert tars == sorted((tmp_path / "webdataset" / "train").glob("*.tar"))
    assert 1 < len(tars) == datasets["webdataset"].shards
    assert all(tar.stat().st_size <= 1 << 16 for tar in tars)
    found = [(sample.name, sample.label) for tar in tars for sample in read_samples(tar)]
    assert [(name, label) for name, label, _ in records(datasets["files"])] == found


def test_the_tars_are_what_tar_expects(small_tree, tmp_path):
    """Python's reader takes every shard; a sample is image, label and what is known of it."""
    dataset = made(small_tree, tmp_path / "dataset", layout="webdataset")
    with tarfile.open(dataset.shard_paths()[0]) as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive}
        assert {(0o644, 0, 0)} == {(member.mode, member.mtime, member.uid) for member in archive}
    assert [
        f"{number:08d}.{suffix}" for number in range(36) for suffix in ("jpg", "cls", "json")
    ] == list(members)
    about = json.loads(members["00000000.json"])
    assert (small_tree / about["wnid"] / about["name"]).read_bytes() == members["00000000.jpg"]
    assert about["label"] == int(members["00000000.cls"])


def test_one_image_that_is_larger_than_the_bound_has_a_shard_of_its_own(tmp_path):
    """It is not refused, and takes nothing along."""
    with opened(tmp_path, layout="webdataset", shard_bytes=1 << 16) as layout:
        for number, length in enumerate((100, 1 << 17, 100)):
            layout.add(Record(number, "n01", f"{number}.JPEG", 0, bytes(length)))
        layout.finish()
        assert 3 == layout.shards


def test_the_webdataset_library_reads_the_shards(small_tree, tmp_path):
    """All records, in order, with their labels, 0 included; images decode to what Pillow makes of
    them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        webdataset = pytest.importorskip(
            "webdataset", reason="webdataset is not installed (pip install webdataset)"
        )
        dataset = made(
            small_tree,
            tmp_path / "dataset",
            layout="webdataset",
            image="rgb256",
            shard_bytes=1 << 16,
        )
        names = f"{dataset.data_path}/train-{{000000..{dataset.shards - 1:06d}}}.tar"
        pipeline = (
            webdataset.WebDataset(names, shardshuffle=False)
            .decode("pil")
            .to_tuple("jpg", "cls", "json")
        )
        found = list(pipeline)
    expected = records(made(small_tree, tmp_path / "files", image="rgb256"))
    assert [(name, label) for name, label, _ in expected] == [
        (about["name"], label) for _, label, about in found
    ]
    assert 0 in {label for _, label, _ in found}
    for (image, _, _), (_, _, data) in zip(found, expected, strict=True):
        assert Image.open(io.BytesIO(data)).tobytes() == image.tobytes()


def test_dali_reads_shards(small_tree, tmp_path):
    """Tars by `fn.readers.webdataset`, several lmdb_layout by `fn.readers.caffe2`: same bytes,
    labels and order."""
    dali = pytest.importorskip(
        "nvidia.dali",
        reason="DALI is not installed (pip install ioprof[dali])",
        exc_type=ImportError,
    )
    fn = pytest.importorskip("nvidia.dali.fn", exc_type=ImportError)
    tars = made(small_tree, tmp_path / "tars", layout="webdataset", shard_bytes=1 << 16)
    sharded = made(small_tree, tmp_path / "sharded", layout="lmdb", shards=3)
    readers = {
        "tars": lambda: fn.readers.webdataset(
            paths=[str(path) for path in tars.shard_paths()], ext=["jpg", "cls"], name="reader"
        ),
        "lmdb": lambda: fn.readers.caffe2(
            path=[str(path) for path in sharded.shard_paths()], label_type=0, name="reader"
        ),
    }
    expected = [(label, data) for _, label, data in records(made(small_tree, tmp_path / "files"))]
    for kind, reader in readers.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DALI's own, on machines without a GPU
            pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=None)
            with pipeline:
                pipeline.set_outputs(*reader())
            pipeline.build()
            assert len(expected) == pipeline.epoch_size("reader")
            outputs = [[np.asarray(output.at(0)) for output in pipeline.run()] for _ in expected]
        labels = [
            int(label.tobytes()) if kind == "tars" else int(label.item()) for _, label in outputs
        ]
        assert expected == [
            (label, image.tobytes()) for label, (image, _) in zip(labels, outputs, strict=True)
        ]


@given(data=st.binary(max_size=3000), place=st.integers(0, 5000))
def test_damaged_shards_never_crash_the_reader(tmp_path_factory, data, place):
    """Samples, or our error."""
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    if not folder.exists():
        written(folder, layout="webdataset")
    good = (folder / "train" / "train-000000.tar").read_bytes()[:6000]
    path = folder / "fuzzed.tar"
    path.write_bytes(good[:place] + data + good[place + len(data) :])
    with contextlib.suppress(DatasetError):
        assert all(sample.size >= 0 for sample in read_samples(path))


# ----------------------------------------------------------------------------------- shards of lmdb


def test_shards_of_lmdb_are_equal_parts_of_the_source(small_tree, tmp_path):
    """Twelve of 36 each, numbered on from one to the next; our loader finds each record."""
    dataset = made(small_tree, tmp_path / "dataset", layout="lmdb", shards=3)
    assert ["train-00000-of-00003", "train-00001-of-00003", "train-00002-of-00003"] == [
        path.name for path in dataset.shard_paths()
    ]
    keys = []
    for path in dataset.shard_paths():
        with (
            lmdb.open(str(path), readonly=True, lock=False) as environment,
            environment.begin() as transaction,
        ):
            keys.append([int(key[:8]) for key, _ in transaction.cursor()])
    assert [list(range(12)), list(range(12, 24)), list(range(24, 36))] == keys
    reader = open_records("lmdb", dataset)
    reader.check()
    expected = records(made(small_tree, tmp_path / "files"))
    assert [(label, data) for _, label, data in expected] == [
        (record.label, record.data) for record in (reader.read(number) for number in range(36))
    ]


def test_a_shard_whose_images_are_all_bad_is_empty(tmp_path):
    """The others keep their places."""
    source = tree(tmp_path / "source", {"n01/a.JPEG": jpeg(), "n01/b.JPEG": b"", "n01/c.JPEG": b""})
    dataset = made(source, tmp_path / "dataset", layout="lmdb", shards=3, on_error="quarantine")
    reader = open_records("lmdb", Dataset.load(dataset.path))
    reader.check()
    assert jpeg() == reader.read(0).data


# ---------------------------------------------------------------------------------- lists of labels


def test_ssv_lists_are_what_chainer_reads(small_tree, tmp_path):
    """`path label` with absolute paths that exist, and a table of classes; two words a line."""
    dataset = made(small_tree, tmp_path / "dataset", labels="ssv", split="val")
    pairs = [line.split() for line in (dataset.path / "val.ssv").read_text().splitlines()]
    assert [(label, data) for _, label, data in records(dataset)] == [
        (int(label), Path(path).read_bytes()) for path, label in pairs
    ]
    assert all(Path(path).is_absolute() for path, _ in pairs)
    table = dict(
        line.split() for line in (dataset.path / "label_table.ssv").read_text().splitlines()
    )
    assert {entry.wnid: str(label) for label, entry in enumerate(dataset.classes)} == table


def test_names_with_spaces_are_refused_for_ssv_lists(tmp_path):
    """Their readers would take a part of the name for the label."""
    source = tree(tmp_path / "source", {"n01/a photo.JPEG": jpeg()})
    with pytest.raises(CommandError, match="holds a space"):
        made(source, tmp_path / "dataset", labels="ssv")
    assert 1 == made(source, tmp_path / "other").records


# ------------------------------------------------------------------------------------------ stripes


@pytest.mark.job
def test_stripes_are_set_before_anything_is_written(small_tree, tmp_path, monkeypatch):
    """By Lustre's own command, on an empty folder; what it says is passed on."""
    calls = tmp_path / "calls"
    program = tmp_path / "bin" / "lfs"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nfor last; do :; done\necho "$@ $(ls -A "$last" | wc -l)" >> {calls}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(lustre_striping, "is_lustre", lambda _: True)
    made(small_tree, tmp_path / "dataset", stripe=True, layout="lmdb")
    (call,) = calls.read_text().splitlines()
    assert call.startswith("setstripe -E 1G -c 1 -E 16G -c 4 -E -1 -c -1 -S 4M /")
    assert call.endswith(" 0")
    program.write_text("#!/bin/sh\necho 'setstripe error: no OSTs' >&2\nexit 22\n")
    with pytest.raises(
        CommandError, match=r"lfs setstripe failed \(setstripe error: no OSTs\); leave out --stripe"
    ):
        made(small_tree, tmp_path / "other", stripe=True)


def test_there_are_stripes_on_lustre_alone(small_tree, tmp_path):
    """Found in the table of mounts; the innermost counts."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/x / ext4 rw 0 0\nmds@o2ib:/fs /scratch/my\\040group lustre rw 0 0\ntmpfs"
        " /scratch/my\\040group/fast tmpfs rw 0 0\n"
    )
    places = {"/scratch/my group/a": True, "/scratch/my group/fast/a": False, "/scratch": False}
    assert places == {place: lustre_striping.is_lustre(Path(place), mounts) for place in places}
    with pytest.raises(CommandError, match="not on Lustre"):
        made(small_tree, tmp_path / "dataset", stripe=True)


def test_stripes_suit_the_layout():
    """One stripe for many files, more as one file grows."""
    assert (
        lustre_striping.recommended_stripes("files").arguments
        == lustre_striping.recommended_stripes("webdataset").arguments
        == lustre_striping.recommended_stripes("lmdb", 64).arguments
        == ("-c", "1")
    )
    assert "-E" in lustre_striping.recommended_stripes("lmdb").arguments


# ------------------------------------------------------------------------------------ Caffe's Datum


def varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def datum(
    data: bytes,
    label: int | None,
    shape: tuple[int, int, int] | None = None,
    encoded: bool | None = None,
) -> bytes:
    """As Caffe serialises it: channels, height, width, data, label, encoded."""
    parts = [
        b"".join(
            bytes([tag]) + varint(side)
            for tag, side in zip((0x08, 0x10, 0x18), shape or (), strict=False)
        )
    ]
    parts.append(b"\x22" + varint(len(data)) + data)
    parts.append(b"" if label is None else b"\x28" + varint(label))
    parts.append(b"" if encoded is None else b"\x38" + varint(int(encoded)))
    return b"".join(parts)


def test_our_loader_reads_an_lmdb_of_caffe(small_tree, tmp_path):
    """Encoded images as they are, raw ones as RGB; keys and labels as `convert_imageset` writes
    them, label 0 included."""
    dataset = made(small_tree, tmp_path / "dataset", layout="lmdb")
    expected = records(dataset)
    pixels = np.asarray(quadrants())
    values = [datum(data, label, (3, 1, 1), encoded=True) for _, label, data in expected]
    values[1] = datum(
        pixels[:, :, ::-1].transpose(2, 0, 1).tobytes(), 300, (3, 64, 64), encoded=False
    )
    values[2] = datum(pixels[:, :, 0].tobytes(), 0, (1, 64, 64))
    (dataset.data_path / "data.mdb").unlink()
    with (
        lmdb.open(str(dataset.data_path), map_size=1 << 24, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, value in enumerate(values):
            transaction.put(f"{number:08d}_n01/a.JPEG".encode(), value)
    reader = open_records("lmdb", dataset)
    reader.check()
    found = [reader.read(number) for number in range(len(values))]
    assert [(label, data, None) for _, label, data in expected[3:]] == [
        (each.label, each.data, each.shape) for each in found[3:]
    ]
    assert (300, pixels.tobytes(), (64, 64, 3)) == (found[1].label, found[1].data, found[1].shape)
    assert (0, np.repeat(pixels[:, :, :1], 3, axis=2).tobytes()) == (found[2].label, found[2].data)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (datum(b"x", None, encoded=True), "neither"),
        (datum(b"", 1), "neither"),
        (datum(bytes(11), 1, (3, 2, 2)), "has 11 bytes for 3 x 2 x 2"),
        (datum(bytes(12), 1, (12, 1, 1)), "has 12 bytes for 12 x 1 x 1"),
        (datum(bytes(12), 2**40, (3, 2, 2)), "neither"),
        (b"\x08\x03\x22\xff\xff\x03", "cut short"),
    ],
)
def test_a_datum_that_cannot_be_used_is_refused(value, words):
    with pytest.raises(DatasetError, match=words):
        decode(value)


def test_old_datums_hold_encoded_images_without_saying_so():
    """The first bytes tell, as DALI takes it too."""
    data = jpeg()
    image, shape, label = decode(datum(data, 0))
    assert (data, None, 0) == (bytes(image), shape, label)


def test_places_default_to_numbers(tmp_path):
    """Of a source without bad images."""
    with opened(tmp_path, layout="lmdb", shards=2, images=4) as layout:
        for record in some_records(4):
            layout.add(record._replace(place=None))
        layout.finish()
    assert [2, 2] == [
        lmdb.open(str(tmp_path / name), readonly=True, lock=False).stat()["entries"]
        for name in ("train-00000-of-00002", "train-00001-of-00002")
    ]
