"""A conversion divided among machines makes the bytes that one machine makes."""

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import jpeg
from made_datasets import folder_bytes, made, records, tree

from ioprof.cli import main
from ioprof.converters import (
    ConvertOptions,
    Part,
    engine_for,
    plan_conversion,
    plan_merge,
    read_part,
)
from ioprof.converters.job import dataset_writer
from ioprof.converters.job import parts as parts_module
from ioprof.converters.job.partial_output import PartialOutput
from ioprof.errors import CommandError, DatasetError, IoprofError
from ioprof.format.dataset import Dataset

LAYOUTS: dict[str, dict[str, Any]] = {
    "files": {"layout": "files", "image": "rgb256"},
    "lmdb": {"layout": "lmdb", "image": "rgb256", "encoding": "raw", "size": 32},
    "shards": {"layout": "lmdb", "shards": 5},
    "webdataset": {"layout": "webdataset", "shard_bytes": 1 << 16},
}
PROGRAM = Path(__file__).parent / "programs" / "convert_on_cluster.py"


def make_parts(source: Path, destination: Path, parts: int, **options: Any) -> None:
    for number in range(1, parts + 1):
        plan_conversion(
            source, destination, ConvertOptions(**{"workers": 1, **options}), Part(number, parts)
        ).run()


@pytest.fixture
def source_with_bad_images(small_tree, tmp_path) -> Path:
    """A third of its images are bad; they are quarantined."""
    source = tmp_path / "source"
    shutil.copytree(small_tree, source)
    for path in sorted(source.glob("*/*"))[::3]:
        path.write_bytes(b"")
    return source


@given(st.integers(1, 10_000), st.integers(0, 10**8))
def test_the_parts_are_all_images_once_and_in_order(parts, total):
    """For any number; and their sizes differ by at most one image."""
    ends = [Part(number, parts).places(total) for number in {1, parts // 2 + 1, parts}]
    assert 0 == Part(1, parts).places(total).start
    assert total == Part(parts, parts).places(total).stop
    assert all(len(places) in (total // parts, total // parts + 1) for places in ends)
    if parts > 1:
        assert Part(1, parts).places(total).stop == Part(2, parts).places(total).start


@pytest.mark.parametrize("layout", LAYOUTS)
def test_merged_parts_are_what_one_machine_makes(source_with_bad_images, tmp_path, layout):
    """To the byte, with bad images in them, with one part and with more parts than some have good
    images."""
    options = {**LAYOUTS[layout], "on_error": "quarantine"}
    one = made(source_with_bad_images, tmp_path / "one" / "dataset", **options)
    for parts in (1, 2, 13):
        destination = tmp_path / str(parts) / "dataset"
        make_parts(source_with_bad_images, destination, parts, **options)
        assert not destination.exists()
        merged = plan_merge(destination, workers=2).run()
        assert 12 == len(merged.quarantined)
        assert folder_bytes(one.path) == folder_bytes(destination)
        assert ["dataset"] == [path.name for path in destination.parent.iterdir()]


@pytest.mark.job
def test_seven_workers_make_what_one_makes(small_tree, tmp_path):
    """To the byte, in parts and as a whole."""
    options = LAYOUTS["lmdb"]
    one = made(small_tree, tmp_path / "one" / "dataset", **options)
    assert folder_bytes(one.path) == folder_bytes(
        made(small_tree, tmp_path / "seven" / "dataset", workers=7, **options).path
    )


@pytest.mark.job(every=4)
def test_a_cluster_makes_what_one_machine_makes(small_tree, tmp_path):
    """Three Dask workers of two threads each: the same bytes."""
    if importlib.util.find_spec("distributed") is None:
        pytest.skip("Dask is not installed: pip install 'ioprof[dask]'")
    one = made(small_tree, tmp_path / "one" / "dataset", **LAYOUTS["lmdb"])
    words = [
        sys.executable,
        str(PROGRAM),
        str(small_tree),
        str(tmp_path / "cluster" / "dataset"),
        json.dumps(LAYOUTS["lmdb"]),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert 0 == done.returncode, done.stderr
    assert folder_bytes(one.path) == folder_bytes(tmp_path / "cluster" / "dataset")


def test_engines_that_make_no_sense_are_refused():
    """A name, an address without Dask, Dask without an address."""
    for arguments in (
        ("spark", None, None),
        ("local", 1, "tcp://localhost:1"),
        ("dask", None, None),
    ):
        with pytest.raises(CommandError, match="--engine"):
            engine_for(*arguments)


def test_an_interrupted_part_and_an_interrupted_merge_go_on(small_tree, tmp_path):
    """As every conversion does; the parts stay until the dataset is in its place."""
    options = ConvertOptions(layout="webdataset", workers=1)
    one = made(small_tree, tmp_path / "one" / "dataset", layout="webdataset")

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    destination = tmp_path / "dataset"
    for number in (1, 2):
        job = plan_conversion(small_tree, destination, options, Part(number, 2))
        with pytest.raises(KeyboardInterrupt):
            job.run(stop)
        assert 0 < job.done() < 18
        with pytest.raises(
            CommandError,
            match=r"no parts next to it|part 2/2 \(started, but not finished\) is missing",
        ):
            plan_merge(destination)
        plan_conversion(small_tree, destination, options, Part(number, 2)).run()
    with pytest.raises(KeyboardInterrupt):
        plan_merge(destination, workers=1).run(stop)
    assert 0 < plan_merge(destination, workers=1).done() < 36
    plan_merge(destination, workers=1).run()
    assert folder_bytes(one.path) == folder_bytes(destination)


def test_parts_that_do_not_belong_together_are_refused(small_tree, tmp_path):
    """None, one missing, of other options, of another division, renamed."""
    destination = tmp_path / "dataset"
    with pytest.raises(CommandError, match=r"no parts next to it.*--part 1/4"):
        plan_merge(destination)
    make_parts(small_tree, destination, 2)
    shutil.copytree(tmp_path / "dataset.part-1-of-2", tmp_path / "kept")
    shutil.rmtree(tmp_path / "dataset.part-1-of-2")
    with pytest.raises(CommandError, match="part 1/2 is missing; make it with: --part 1/2"):
        plan_merge(destination)
    plan_conversion(
        small_tree, destination, ConvertOptions(workers=1, shuffle_seed=1), Part(1, 2)
    ).run()
    with pytest.raises(CommandError, match="differs from part 1/2 in shuffle_seed"):
        plan_merge(destination)
    shutil.copytree(tmp_path / "kept", tmp_path / "dataset.part-1-of-3")
    with pytest.raises(CommandError, match="parts of 2 and of 3"):
        plan_merge(destination)
    shutil.rmtree(tmp_path / "dataset.part-1-of-3")
    shutil.rmtree(tmp_path / "dataset.part-1-of-2")
    shutil.copytree(tmp_path / "dataset.part-2-of-2", tmp_path / "dataset.part-1-of-2")
    with pytest.raises(DatasetError, match="is part 2/2"):
        plan_merge(destination)


def test_a_damaged_part_is_found(small_tree, tmp_path):
    """A record that changed since it was written; nothing of it gets into a dataset."""
    destination = tmp_path / "dataset"
    make_parts(small_tree, destination, 2)
    path = tmp_path / "dataset.part-2-of-2" / "train" / "data.mdb"
    content = bytearray(path.read_bytes())
    image = next(
        data for image in small_tree.glob("*/*") if (data := image.read_bytes()) in content
    )
    content[content.index(image) + len(image) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DatasetError, match=r"part-2-of-2: .*; remove it and convert this part again"
    ):
        plan_merge(destination, workers=1).run()
    assert not destination.exists()


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=int(os.environ.get("IOPROF_FUZZED", "100")))
@given(data=st.data())
def test_a_part_with_any_other_value_is_used_or_refused(tmp_path_factory, data):
    """Any value at any key of its manifest: an error of ioprof."""
    folder = tmp_path_factory.mktemp("part")
    options = {"layout": "lmdb", "split": "train"}
    keys: dict[str, Any] = {
        "schema": "ioprof.part/1",
        "part": 1,
        "parts": 2,
        "total": 3,
        "source": "",
        "options": options,
    }
    keys |= {"classes": [{"wnid": "n01", "name": "a"}], "identity": {}, "records": 1, "bytes": 10}
    keys |= {"quarantined": [{"name": "n01/b", "reason": "empty file"}]}
    place = data.draw(st.sampled_from([None, *keys]))
    value = data.draw(JSON)
    (folder / "part.json").write_text(
        json.dumps(value if place is None else {**keys, place: value})
    )
    try:
        part = read_part(folder)
    except IoprofError:
        return
    assert part.total > 0
    assert min(part.records, part.bytes) >= 0


def test_a_part_may_be_empty(tmp_path):
    """All its images are bad: it is a part like any other, with the list of them, and the merged
    dataset has them too."""
    source = tree(
        tmp_path / "source",
        {f"n01/{number}.JPEG": b"" if number else jpeg() for number in range(4)},
    )
    one = made(source, tmp_path / "one" / "dataset", on_error="quarantine")
    options = ConvertOptions(workers=1, on_error="quarantine")
    found = [
        plan_conversion(source, tmp_path / "dataset", options, Part(number, 4)).run()
        for number in (1, 2, 3, 4)
    ]
    assert [(0, 0, 1)] * 3 + [(1, one.bytes, 0)] == sorted(
        (part.records, part.bytes, len(part.quarantined)) for part in found
    )
    assert found == [read_part(tmp_path / f"dataset.part-{number}-of-4") for number in (1, 2, 3, 4)]
    merged = plan_merge(tmp_path / "dataset").run()
    assert folder_bytes(one.path) == folder_bytes(merged.path)
    assert sorted(entry["name"] for part in found for entry in part.quarantined) == sorted(
        entry["name"] for entry in merged.quarantined
    )


def test_a_dataset_may_not(tmp_path):
    """Where all images of all parts are bad there is nothing to be merged; the parts stay."""
    source = tree(tmp_path / "source", {f"n01/{number}.JPEG": b"" for number in range(4)})
    make_parts(source, tmp_path / "dataset", 2, on_error="quarantine")
    with pytest.raises(CommandError, match="all 4 images are bad"):
        plan_merge(tmp_path / "dataset").run()
    assert ["dataset.part-1-of-2", "dataset.part-2-of-2", "source"] == sorted(
        path.name for path in tmp_path.iterdir()
    )


KILLED_AT = {
    "the manifest": (dataset_writer, "write_json_atomically", 1),
    "the exchange": (dataset_writer, "put_in_place", 1),
    "moving the parts": (parts_module, "move_parts", 1),
    "the second part": (Path, "rename", 2),
    "removing": (PartialOutput, "remove", 1),
    "removing the data": (shutil, "rmtree", 1),
    "removing the second part": (shutil, "rmtree", 3),
}
"""Where the function is, its name, and which of its calls is the last."""


@pytest.mark.job
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("instant", KILLED_AT)
def test_a_merge_killed_at_its_end_is_finished_by_the_next(
    capsys, small_tree, tmp_path, monkeypatch, instant, after
):
    """Before and after each of its last acts: the same command ends well, and nothing but the
    dataset is left."""
    expected = folder_bytes(made(small_tree, tmp_path / "one" / "dataset").path)
    destination = tmp_path / "all" / "dataset"
    make_parts(small_tree, destination, 3)
    home, name, times = KILLED_AT[instant]
    act, left = getattr(home, name), iter(range(times - 1))

    def killed(*arguments: Any, **options: Any) -> None:
        is_last = next(left, None) is None
        if after or not is_last:
            act(*arguments, **options)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    process = os.fork()
    if not process:
        setattr(home, name, killed)
        with contextlib.suppress(BaseException):
            plan_merge(destination, workers=1).run()
        os._exit(3)
    assert -signal.SIGKILL == os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = main(["convert", "merge", str(destination), "--workers", "2"])
    printed = capsys.readouterr()
    if code:  # it had come to its very end
        assert "exists; replace it with --force" in printed.err
        assert (instant, after) == ("removing", True)
    else:
        assert "36 records" in printed.out
    assert expected == folder_bytes(destination)
    assert ["dataset"] == [path.name for path in destination.parent.iterdir()]


def test_what_a_merge_has_taken_away_is_not_looked_for_elsewhere(small_tree, tmp_path):
    """A part that was made anew since, of other options, is not removed with what is left of a
    merge that was killed."""
    destination = tmp_path / "dataset"
    make_parts(small_tree, destination, 2)
    merging = plan_merge(destination, workers=1)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartialOutput, "remove", stop)
        with pytest.raises(KeyboardInterrupt):
            merging.run()
    plan_conversion(
        small_tree, destination, ConvertOptions(workers=1, shuffle_seed=1), Part(1, 2)
    ).run()
    assert 36 == plan_merge(destination).run().records
    assert ["dataset", "dataset.part-1-of-2"] == sorted(path.name for path in tmp_path.iterdir())


def test_the_commands(capsys, small_tree, tmp_path):
    """`--part` twice, `inspect` of a part, and `merge`; each says what to type next."""
    destination = str(tmp_path / "dataset")
    for part in ("1/2", "2/2"):
        words = [
            "convert",
            "imagenet",
            str(small_tree),
            destination,
            "--part",
            part,
            "--workers",
            "1",
            "--layout",
            "lmdb",
        ]
        assert 0 == main(words)
        assert f"next: ioprof convert merge {destination}" in capsys.readouterr().err
    assert 0 == main(["inspect", f"{destination}.part-2-of-2"])
    assert "2/2" in capsys.readouterr().out
    assert 0 == main(["convert", "merge", destination, "--workers", "1"])
    assert "36 records" in capsys.readouterr().out
    assert 36 == len(records(Dataset.load(tmp_path / "dataset")))
    for part in ("0/2", "3/2", "1", "a/b", "1/99999"):
        assert 2 == main(["convert", "imagenet", str(small_tree), destination, "--part", part])
    source = tree(tmp_path / "two", {"n01/a.JPEG": jpeg(), "n01/b.JPEG": jpeg()})
    assert 2 == main(["convert", "imagenet", str(source), str(tmp_path / "d"), "--part", "1/3"])
    assert "make fewer parts" in capsys.readouterr().err


@pytest.mark.parametrize("left", [[], ["lock"], ["lock", "boot"], ["job.json", "lock"]])
@pytest.mark.parametrize("at_work", [False, True])
def test_the_last_of_what_was_kept_is_swept_away(small_tree, tmp_path, left, at_work):
    """Killed while it removed it: after the next command only the dataset is there; unless another
    job has just started."""
    made(small_tree, tmp_path / "dataset")
    folder = tmp_path / ".dataset.partial"
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{}")
    with open(folder / "lock", "a") if at_work else contextlib.nullcontext() as lock:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert plan_conversion(small_tree, tmp_path / "dataset", ConvertOptions()).was_done
        assert plan_merge(tmp_path / "dataset").was_done
        with pytest.raises(CommandError, match="exists; replace it with --force"):
            plan_conversion(small_tree, tmp_path / "dataset", ConvertOptions(limit=3))
    assert at_work == folder.exists()
