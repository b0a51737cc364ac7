"""`ioprof verify` finds every difference from the manifest, and `ioprof inspect` shows what a
folder is."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import BAD, jpeg
from made_datasets import made, tree

from ioprof.cli import main
from ioprof.converters import ConvertOptions, convert, plan_verification
from ioprof.errors import DatasetError
from ioprof.foreign.tensorprotos import encode_image
from ioprof.format.dataset import Dataset

LAYOUTS: dict[str, dict[str, Any]] = {
    "files": {"layout": "files", "image": "rgb256"},
    "lmdb": {"layout": "lmdb", "image": "rgb256", "encoding": "raw"},
    "shards": {"layout": "lmdb", "shards": 3},
    "webdataset": {
        "layout": "webdataset",
        "shard_bytes": 1 << 16,
        "image": "rgb256",
        "encoding": "png",
        "size": 40,
    },
}
FUZZED = settings(max_examples=int(os.environ.get("IOPROF_FUZZED", "100")))


def problems(path: Path, **options: Any) -> list[str]:
    return plan_verification(path, workers=1, **options).run().problems


@pytest.mark.job
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_converted_is_good(small_tree, tmp_path, layout):
    """In every layout, to any depth, by any number of workers."""
    path = made(small_tree, tmp_path / "dataset", **LAYOUTS[layout]).path
    for options in ({}, {"deep": True}, {"source": small_tree}):
        assert [] == problems(path, **options)
    found = plan_verification(path, deep=True, workers=2).run()
    assert (True, 36, Dataset.load(path).digest) == (found.is_good, found.records, found.digest)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_changed_bit_is_found(small_tree, tmp_path, layout):
    """In any record: by the digest."""
    options = {**LAYOUTS[layout], "image": "original", "encoding": None, "size": None}
    path = made(small_tree, tmp_path / "dataset", **options).path
    image = next(iter(sorted(small_tree.glob("*/*")))).read_bytes()
    (file,) = [file for file in path.rglob("*") if file.is_file() and image in file.read_bytes()]
    content = file.read_bytes()
    place = content.index(image) + len(image) // 2
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert any("digest" in line for line in problems(path))


def drop_a_file(path: Path) -> None:
    sorted(path.glob("train/*/*"))[0].unlink()


def swap_two_labels(path: Path) -> None:
    files = sorted(path.glob("train/*/*"))
    one, other = files[0], files[-1]
    content = one.read_bytes(), other.read_bytes()
    one.write_bytes(content[1])
    other.write_bytes(content[0])


def cut(path: Path) -> None:
    file = max(path.rglob("*"), key=lambda file: file.stat().st_size if file.is_file() else 0)
    os.truncate(file, file.stat().st_size // 2)


def drop_the_data(path: Path) -> None:
    shutil.rmtree(path / "train", ignore_errors=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("damage", [cut, drop_the_data])
def test_damage_is_one_line_in_every_layout(capsys, small_tree, tmp_path, layout, damage):
    """Cut, or gone: exit code 1, and each problem names its place."""
    path = made(small_tree, tmp_path / "dataset", **LAYOUTS[layout]).path
    damage(path)
    if layout == "shards" and damage is drop_the_data:
        shutil.rmtree(path / "train-00001-of-00003")
    assert 1 == main(["verify", str(path), "--workers", "1"])
    out = capsys.readouterr().out
    assert str(path) in out
    assert "problem" in out


@pytest.mark.parametrize("damage", [drop_a_file, swap_two_labels])
def test_damage_of_files_is_found(small_tree, tmp_path, damage: Callable[[Path], None]):
    """A file that is missing, and two that stand in each other's place."""
    path = made(small_tree, tmp_path / "dataset").path
    damage(path)
    assert problems(path)


def test_a_manifest_that_lies_is_found(small_tree, tmp_path):
    """About any of what is counted."""
    dataset = made(small_tree, tmp_path / "dataset", layout="lmdb")
    for change in (
        {"records": 35},
        {"records": 37},
        {"bytes": 7},
        {"digest": "sha256:" + "0" * 64},
    ):
        replace(dataset, **change).save()
        assert any(
            next(iter(change)) in line or "36 records" in line for line in problems(dataset.path)
        ), change


def test_wrong_labels_are_found(small_tree, tmp_path):
    """By the names of ImageNet's images, and by the source record by record."""
    dataset = made(small_tree, tmp_path / "dataset", layout="lmdb")
    replace(dataset, classes=dataset.classes[::-1]).save()
    assert [] == problems(dataset.path)
    assert 20 == len(problems(dataset.path, deep=True))
    assert "label" in problems(dataset.path, deep=True)[0]
    other = tmp_path / "source"
    shutil.copytree(small_tree, other)
    victim = sorted(other.glob("*/*"))[0]
    victim.rename(victim.with_name("other.JPEG"))
    dataset.save()
    assert any("the source has" in line for line in problems(dataset.path, source=other))


def test_records_that_do_not_decode_are_found(tmp_path):
    """Whole by count and digest, and no images: only the deep check sees it."""
    files = {f"n01/{number}.JPEG": jpeg(seed=number) for number in range(len(BAD))}
    dataset = made(tree(tmp_path / "source", files), tmp_path / "dataset")
    for (data, _), path in zip(BAD.values(), sorted(dataset.path.glob("train/*/*")), strict=True):
        path.write_bytes(data or b"x")
    found = plan_verification(dataset.path, deep=True, workers=1).run()
    assert sum("cannot be decoded" in line for line in found.problems) == len(BAD)


def test_the_command_says_what_it_found(capsys, small_tree, tmp_path):
    """As text and as JSON, with the next command; exit code 2 for what is no dataset."""
    path = made(small_tree, tmp_path / "dataset", layout="lmdb").path
    assert 0 == main(["verify", str(path), "--deep", "--workers", "1"])
    printed = capsys.readouterr()
    assert "36 records" in printed.out
    assert "as the manifest says; every record decodes" in printed.out
    assert f"next: ioprof run {path}" in printed.err
    assert 0 == main(["verify", str(path), "--source", str(small_tree), "--json", "--workers", "1"])
    keys = json.loads(capsys.readouterr().out)
    assert (True, 36, "the source", []) == (
        keys["good"],
        keys["records"],
        keys["labels_compared_with"],
        keys["problems"],
    )
    assert 2 == main(["verify", str(tmp_path)])


def test_inspect_says_what_a_folder_is(capsys, small_tree, tmp_path):
    """A dataset, what a killed conversion left, and neither."""
    dataset = made(small_tree, tmp_path / "dataset", **LAYOUTS["webdataset"])
    assert 0 == main(["inspect", str(dataset.path), "--json"])
    keys = json.loads(capsys.readouterr().out)
    expected = {
        "kind": "dataset",
        "layout": "webdataset",
        "records": 36,
        "classes": 4,
        "digest": dataset.digest,
    }
    assert expected == {key: keys[key] for key in expected}
    assert 0 == main(["inspect", str(dataset.path)])
    printed = capsys.readouterr()
    assert all(word in printed.out for word in ("webdataset", "36", "png", "image tree"))
    assert f"next: ioprof verify {dataset.path}" in printed.err

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(small_tree, tmp_path / "half", ConvertOptions(workers=1), stop)
    assert 0 == main(["inspect", str(tmp_path / ".half.partial")])
    assert "images done" in capsys.readouterr().out
    assert 2 == main(["inspect", str(tmp_path / "absent")])
    assert "No such file or directory" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- hostile data


@pytest.fixture(scope="session")
def one_of_each(tmp_path_factory, small_tree) -> dict[str, Path]:
    """A dataset in each layout, to copy from."""
    root = tmp_path_factory.mktemp("each")
    return {
        layout: made(small_tree, root / layout, limit=6, **options).path
        for layout, options in LAYOUTS.items()
    }


@FUZZED
@given(data=st.data())
def test_damaged_indices_and_tars_are_problems(one_of_each, data, tmp_path_factory):
    """Any byte changed, anything inserted, cut anywhere: it ends, and raises nothing but our
    error."""
    layout = data.draw(st.sampled_from(["files", "webdataset"]))
    path = tmp_path_factory.mktemp("fuzz") / "dataset"
    shutil.copytree(one_of_each[layout], path)
    file = path / "train.txt" if layout == "files" else sorted(path.glob("train/*.tar"))[0]
    content = file.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, len(content)))
    file.write_bytes(content[:start] + data.draw(st.binary(max_size=600)) + content[stop:])
    found = plan_verification(path, deep=data.draw(st.booleans()), workers=1).run()
    assert found.is_good or found.problems
    shutil.rmtree(path.parent)


@FUZZED
@given(
    values=st.lists(
        st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=60)),
        min_size=1,
        max_size=4,
        unique_by=lambda x: x[0],
    )
)
def test_any_keys_and_values_of_an_lmdb_are_problems(tmp_path_factory, one_of_each, values):
    """Any bytes in the environment."""
    folder = tmp_path_factory.mktemp("fuzz")
    dataset = replace(Dataset.load(one_of_each["lmdb"]), path=folder, records=len(values) + 1)
    dataset.save()
    with (
        closing(
            lmdb.open(str(folder / "train"), map_size=1 << 20, lock=False, sync=False)
        ) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"00000000_a", encode_image(b"x", 0))
        for key, value in values:
            transaction.put(b"00000001" + key, value)
    try:
        found = plan_verification(folder, deep=True, workers=1).run()
    except DatasetError:
        return
    finally:
        shutil.rmtree(folder)
    assert found.problems
