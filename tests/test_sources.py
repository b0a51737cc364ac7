"""Sources: validation images with the devkit's labels, Kaggle's layout, Parquet shards, synthetic
images, known archives."""

import contextlib
import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import jpeg
from made_datasets import made, records, tree

from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate
from ioprof.converters.sources.archive_checksums import check_archives
from ioprof.converters.sources.mat_file import read_structs
from ioprof.converters.sources.source_kinds import open_source
from ioprof.errors import CommandError, DatasetError
from ioprof.format.dataset import Dataset

WNIDS = {1: "n02119789", 2: "n02100735", 3: "n01440764", 4: "n03220513"}
"""By ILSVRC2012_ID, as in the devkit: not in the order of the wnids."""

TRUTH = [3, 1, 4, 2, 3, 3, 1]

VAL = {f"ILSVRC2012_val_{line:08d}.JPEG": jpeg(seed=line) for line in range(1, len(TRUTH) + 1)}


def expected_labels() -> dict[str, int]:
    """Of each validation image: the place of its wnid among all of them, sorted."""
    order = sorted(WNIDS.values())
    return {name: order.index(WNIDS[number]) for name, number in zip(VAL, TRUTH, strict=True)}


def meta_mat(compressed: bool = True) -> bytes:
    """The devkit's list of synsets as SciPy writes it: the classes, and an inner node of the
    tree."""
    scipy_io = pytest.importorskip(
        "scipy.io", reason="SciPy is not installed, which writes MATLAB files"
    )
    names = [
        "ILSVRC2012_ID",
        "WNID",
        "words",
        "gloss",
        "num_children",
        "children",
        "wordnet_height",
        "num_train_images",
    ]
    rows = [
        (number, wnid, f"words of {wnid}", "gloss", 0, np.zeros((1, 0)), 0, 1300)
        for number, wnid in WNIDS.items()
    ]
    rows.append((1001, "n00001740", "entity", "gloss", 2, np.array([[1, 2]]), 5, 0))
    synsets = np.array(rows, dtype=[(name, "O") for name in names]).reshape(-1, 1)
    stream = io.BytesIO()
    scipy_io.savemat(stream, {"other": np.eye(2), "synsets": synsets}, do_compression=compressed)
    return stream.getvalue()


def devkit(
    truth: str = "".join(f"{number}\n" for number in TRUTH), compressed: bool = True
) -> dict[str, bytes]:
    """Its files that matter."""
    return {
        "data/meta.mat": meta_mat(compressed),
        "data/ILSVRC2012_validation_ground_truth.txt": truth.encode(),
    }


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def val_tar(folder: Path, **of_devkit: object) -> Path:
    write_tar(
        folder / "ILSVRC2012_devkit_t12.tar.gz",
        {f"ILSVRC2012_devkit_t12/{k}": v for k, v in devkit(**of_devkit).items()},
        "w:gz",
    )
    return write_tar(folder / "ILSVRC2012_img_val.tar", VAL)


def labels_of(dataset: Dataset) -> dict[str, int]:
    return {name: label for name, label, _ in records(dataset)}


# -------------------------------------------------------------------------------- validation images


@pytest.mark.parametrize("compressed", [True, False])
def test_validation_labels_are_places_of_sorted_wnids(tmp_path, compressed):
    """Not ILSVRC2012_ID, by which the devkit counts; the bytes are those in the tar, and the
    classes bear their names."""
    (tmp_path / "source").mkdir()
    val_tar(tmp_path / "source", compressed=compressed)
    dataset = made(tmp_path / "source", tmp_path / "dataset", split="val", layout="lmdb")
    assert expected_labels() == labels_of(dataset)
    assert VAL == {name: data for name, _, data in records(dataset)}
    assert [(wnid, f"words of {wnid}") for wnid in sorted(WNIDS.values())] == [
        (entry.wnid, entry.name) for entry in dataset.classes
    ]
    assert "by ILSVRC2012_ID" in dataset.source


def test_every_list_of_validation_labels_says_the_same(tmp_path):
    """The devkit packed or not, Kaggle's solution, the list of synsets; images in a tar, in a flat
    folder or at Kaggle's place."""
    wnids = [WNIDS[number] for number in TRUTH]
    solution = "ImageId,PredictionString\n" + "".join(
        f"{Path(name).stem},{wnid} 1 2 3 4 {wnid} 5 6 7 8 \n"
        for name, wnid in zip(VAL, wnids, strict=True)
    )
    mapping = "".join(f"{wnid} words of {wnid}\n" for wnid in WNIDS.values())
    flat = {f"val/{name}": data for name, data in VAL.items()}
    kaggle = {f"ILSVRC/Data/CLS-LOC/val/{name}": data for name, data in VAL.items()}
    sources = {
        "folder": {
            **flat,
            **{f"ILSVRC2012_devkit_t12/{name}": data for name, data in devkit().items()},
        },
        "kaggle": {
            **kaggle,
            "LOC_val_solution.csv": solution.encode(),
            "LOC_synset_mapping.txt": mapping.encode(),
        },
        "synsets": {
            **flat,
            "imagenet_2012_validation_synset_labels.txt": "".join(
                f"{wnid}\n" for wnid in wnids
            ).encode(),
        },
    }
    (tmp_path / "tar").mkdir()
    digests = {made(val_tar(tmp_path / "tar"), tmp_path / "of-tar", split="val").digest}
    for name, files in sources.items():
        dataset = made(tree(tmp_path / name, files), tmp_path / f"of-{name}", split="val")
        assert expected_labels() == labels_of(dataset), name
        digests.add(dataset.digest)
    assert 1 == len(digests)


def test_kaggle_has_class_folders_for_training(tmp_path):
    """And the class names next to them."""
    files = {
        "ILSVRC/Data/CLS-LOC/train/n01/a.JPEG": jpeg(),
        "LOC_synset_mapping.txt": b"n01 tench, Tinca tinca\n",
    }
    dataset = made(tree(tmp_path / "source", files), tmp_path / "dataset")
    assert ("tench, Tinca tinca", {"a.JPEG": 0}) == (dataset.classes[0].name, labels_of(dataset))
    with pytest.raises(CommandError, match="has no folder test"):
        open_source(tmp_path / "source", "test")


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        ("3\n1\n", "has no label"),
        ("3\n1\n4\n2\n3\n3\n1001\n", "not a class of"),
        ("3\nx\n4\n2\n3\n3\n1\n", "not a class of"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(tmp_path, truth, words):
    """An image without a label, a number that is no class."""
    with pytest.raises(DatasetError, match=words):
        open_source(val_tar(tmp_path, truth=truth), "val")


def test_images_without_classes_are_told_what_is_missing(tmp_path):
    """In a tar and in a folder."""
    write_tar(tmp_path / "ILSVRC2012_img_val.tar", VAL)
    tree(tmp_path / "source", {f"val/{name}": data for name, data in VAL.items()})
    for path in (tmp_path / "ILSVRC2012_img_val.tar", tmp_path / "source"):
        with pytest.raises(
            DatasetError, match=r"without classes; put a list.*ILSVRC2012_devkit_t12\.tar\.gz"
        ):
            open_source(path, "val")


@given(data=st.binary(max_size=300), place=st.integers(0, 700), whole=st.booleans())
def test_a_damaged_meta_mat_never_crashes(data, place, whole):
    """Any bytes: a list, or an error of ioprof."""
    good = META if whole else META_PLAIN
    for hostile in (
        data,
        good[:place] + data + good[place + len(data) :],
        good[:place],
        good[:126] + b"IM" + data,
    ):
        with contextlib.suppress(DatasetError):
            assert isinstance(read_structs(hostile, "meta"), list)


try:
    META, META_PLAIN = meta_mat(), meta_mat(compressed=False)
except pytest.skip.Exception:
    META = META_PLAIN = b"MATLAB 5.0".ljust(126) + b"IM" + struct.pack("<II", 14, 8) + bytes(8)


def test_known_archives_are_compared_when_asked(tmp_path):
    """One that differs is named with both sums; one that is not known cannot be checked."""
    tar = val_tar(tmp_path)
    with pytest.raises(
        CommandError, match=r"_val\.tar: MD5 is \w+, ImageNet's is 29b22e2961454d5413ddabcf34fc5622"
    ):
        convert(tar, tmp_path / "dataset", ConvertOptions(split="val", check_md5=True, workers=1))
    sums = {
        path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in tmp_path.glob("ILSVRC*")
    }
    check_archives(tmp_path, "val", sums)
    with pytest.raises(CommandError, match="no archive whose MD5 is known"):
        open_source(tree(tmp_path / "tree", {"n01/a.JPEG": jpeg()}), "train", check_md5=True)


# ------------------------------------------------------------------------------------------ Parquet


def shards(
    folder: Path,
    rows: list[tuple[bytes | None, str | None, int | None]],
    *,
    names: list[str] | None = None,
    **options: object,
) -> Path:
    """Two shards as Hugging Face's `datasets` writes them."""
    pa = pytest.importorskip(
        "pyarrow", reason="pyarrow is not installed (pip install ioprof[parquet])"
    )
    parquet = pytest.importorskip("pyarrow.parquet")
    features = {"label": {"names": names, "_type": "ClassLabel"}} if names else {}
    folder.mkdir(exist_ok=True)
    for shard, part in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
        image = pa.array(
            [{"bytes": data, "path": path} for data, path, _ in part],
            pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        )
        table = pa.table(
            {"image": image, "label": pa.array([label for *_, label in part], pa.int64())}
        )
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
        parquet.write_table(
            table,
            folder / f"train-{shard:05d}-of-00002.parquet",
            **{"row_group_size": 7, **options},
        )
    return folder


@pytest.mark.job
def test_parquet_shards_hold_the_images_of_the_tree(small_tree, tmp_path):
    """Same names, labels and bytes; the wnids are found at the end of the names."""
    wnids = sorted(path.name for path in small_tree.iterdir())
    files = sorted(
        small_tree.glob("*/*"), key=lambda path: hashlib.md5(path.name.encode()).hexdigest()
    )
    rows = [
        (path.read_bytes(), f"{path.stem}_{path.parent.name}.JPEG", wnids.index(path.parent.name))
        for path in files
    ]
    source = shards(
        tmp_path / "shards", rows, names=["tench, Tinca tinca", "b", "c", "d"], compression="snappy"
    )
    dataset = made(source, tmp_path / "dataset", layout="lmdb")
    assert sorted((path.rpartition("/")[2], label, data) for data, path, label in rows) == sorted(
        records(dataset)
    )
    assert wnids == [entry.wnid for entry in dataset.classes]
    assert "tench, Tinca tinca" == dataset.classes[0].name
    again = made(source, tmp_path / "again", workers=3)
    assert dataset.digest == again.digest
    assert records(dataset) != records(
        made(source, tmp_path / "other", layout="lmdb", shuffle_seed=1)
    )


def test_parquet_labels_without_wnids_are_kept(tmp_path):
    """Classes are called by their labels, also those without an image, so that every label stays
    what it was."""
    rows = [
        (jpeg(seed=label), None if label % 2 else "photo.JPEG", label) for label in (3, 11, 7, 3)
    ]
    dataset = made(
        shards(tmp_path / "shards", rows, names=[f"class {label}" for label in range(12)]),
        tmp_path / "dataset",
    )
    assert sorted((label, data) for data, _, label in rows) == sorted(
        (label, data) for _, label, data in records(dataset)
    )
    assert ([f"{label:02d}" for label in range(12)], "class 11") == (
        [entry.wnid for entry in dataset.classes],
        dataset.classes[11].name,
    )


def test_a_bad_image_in_a_shard_is_quarantined(tmp_path):
    """One without bytes too."""
    rows = [
        (jpeg(), "a.JPEG", 0),
        (None, "b.JPEG", 0),
        (b"<html>", "c.JPEG", 1),
        (jpeg(seed=1), "d.JPEG", 1),
    ]
    dataset = made(shards(tmp_path / "shards", rows), tmp_path / "dataset", on_error="quarantine")
    assert [("0/b.JPEG", "empty file"), ("1/c.JPEG", "a web page, not an image")] == sorted(
        (entry["name"], entry["reason"]) for entry in dataset.quarantined
    )
    assert {"a.JPEG": 0, "d.JPEG": 1} == labels_of(dataset)


def test_shards_that_cannot_be_used_are_one_line(tmp_path):
    """No label, a damaged file, another split, no such columns."""
    with pytest.raises(DatasetError, match="row 1 has the label None"):
        open_source(
            shards(
                tmp_path / "a",
                [(jpeg(), "a", 0), (jpeg(), "b", 1), (jpeg(), "c", 2), (jpeg(), "d", None)],
            ),
            "train",
        )
    with pytest.raises(DatasetError, match="label -1"):
        open_source(shards(tmp_path / "b", [(jpeg(), "a", 0), (jpeg(), "b", -1)]), "train")
    with pytest.raises(CommandError, match="no shard of the split val"):
        open_source(tmp_path / "a", "val")
    damaged = tree(tmp_path / "c", {"train-00000-of-00001.parquet": b"PAR1" + bytes(100)})
    with pytest.raises(DatasetError, match="not a Parquet file"):
        open_source(damaged, "train")


# ---------------------------------------------------------------------------------------- synthetic


def test_synthetic_images_are_those_that_generate_makes(tmp_path):
    """Bytes, names, labels and order; nothing but the dataset is written."""
    tree_of = generate(tmp_path / "tree", GenerateOptions(images=24, workers=1)).path
    of_tree = made(tree_of, tmp_path / "of-tree", layout="lmdb")
    dataset = made(Path("synthetic:24"), tmp_path / "dataset", layout="lmdb")
    assert records(of_tree) == records(dataset)
    assert (of_tree.classes, of_tree.digest, "synthetic:24") == (
        dataset.classes,
        dataset.digest,
        dataset.source,
    )


@pytest.mark.parametrize("name", ["synthetic:", "synthetic:0", "synthetic:-3", "synthetic:many"])
def test_synthetic_needs_a_number(name):
    with pytest.raises(CommandError, match="such as synthetic:1000"):
        open_source(Path(name), "train")
