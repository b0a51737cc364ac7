"""Staging: the copy is the dataset, byte for byte; an interruption costs what was under way;
nothing half-made looks whole."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import jobs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_datasets import FORMS, folder_bytes, made

from ioprof import clock
from ioprof.converters import plan_verification
from ioprof.errors import CommandError, DatasetError
from ioprof.format.dataset import Dataset
from ioprof.jobs.dataset_multiple import multiple_of
from ioprof.jobs.staged.staging import STAGED_NAME, Staging, read_staged, remove_staged
from ioprof.loaders.scaling import Scale
from ioprof.storage.copying import Part, copy, make_folders, part_matches, parts_of
from ioprof.storage.node_local import node_local


@pytest.fixture(scope="module")
def datasets(small_tree, tmp_path_factory):
    """36 records in each form; for reading only."""
    folder = tmp_path_factory.mktemp("shared")
    return {
        form: made(small_tree, folder / form.replace(" ", "-"), **options)
        for form, options in FORMS.items()
    }


@pytest.fixture(params=FORMS)
def dataset(request, datasets):
    return datasets[request.param]


def staged(dataset, folder, keep=True, **more):
    """Stage it and return the copy."""
    folder.mkdir(exist_ok=True)
    staging = Staging(dataset, folder, keep, **more)
    staging.run()
    return Dataset.load(staging.destination)


# ---------------------------------------------------------------------------------------- the parts


@given(st.lists(st.integers(0, 40), max_size=8))
def test_the_parts_are_all_bytes_once(sizes):
    """Law: every byte of every file is in one part, and every file, an empty one too, has a part at
    its beginning."""
    found = [
        Part(f"{number}", f"{number}", start, size, total)
        for number, total in enumerate(sizes)
        for start, size in cut(total)
    ]
    for number, total in enumerate(sizes):
        own = [part for part in found if part.source == str(number)]
        covered = [place for part in own for place in range(part.start, part.start + part.bytes)]
        assert (list(range(total)), 0) == (covered, own[0].start)


def cut(size):
    """As `parts_of` cuts a file, with parts of 7 bytes."""
    return [(start, min(7, size - start)) for start in range(0, max(size, 1), 7)]


def test_large_files_are_cut_and_small_ones_are_not(tmp_path):
    """The same on real files; what is missing is one line."""
    files = []
    for size in (0, 6, 7, 8, 30):
        (tmp_path / str(size)).write_bytes(bytes(size))
        files.append((str(tmp_path / str(size)), f"a/{size}"))
    found = {}
    for part in parts_of(files, 7):
        found.setdefault(part.file_bytes, []).append((part.start, part.bytes))
    assert {size: cut(size) for size in (0, 6, 7, 8, 30)} == found
    with pytest.raises(
        CommandError, match=r"missing: cannot be staged \(No such file or directory\)"
    ):
        parts_of([(str(tmp_path / "missing"), "missing")])


@pytest.mark.parametrize("threads", [1, 5])
def test_what_is_copied_is_what_is_there(tmp_path, threads):
    """Any order of threads makes the same bytes, and each part's hash is that of its bytes; times
    lie within the task."""
    random = np.random.default_rng(0)
    sizes = [0, 1, 999, 1000, 1001, 12_345, *random.integers(0, 3000, 60).tolist()]
    for number, size in enumerate(sizes):
        (tmp_path / f"{number}").write_bytes(random.bytes(size))
    files = [
        (str(tmp_path / f"{number}"), f"{number % 3}/{number}") for number in range(len(sizes))
    ]
    parts, out, noted = parts_of(files, 1000), tmp_path / "out", []
    make_folders(parts, out)

    tasks = list(copy(parts, range(len(parts)), out, clock.monotonic_ns, noted.append, threads))

    assert {target: Path(source).read_bytes() for source, target in files} == folder_bytes(out)
    assert sorted(range(len(parts))) == sorted(
        each.number for task in tasks for each in task.copied
    )
    assert (sum(sizes), set(noted)) == (sum(task.bytes for task in tasks), set(tasks))
    assert all(
        part_matches(parts[each.number], out, each.sha256) for task in tasks for each in task.copied
    )
    assert all(
        task.read_ns >= 0
        and task.write_ns >= 0
        and task.read_ns + task.write_ns == task.end_ns - task.start_ns
        for task in tasks
    )


def test_a_source_that_shrinks_is_one_line(tmp_path):
    """A file that ends before its length is an error about that file, and no copy of half of it."""
    (tmp_path / "file").write_bytes(bytes(10))
    parts = parts_of([(str(tmp_path / "file"), "file")])
    (tmp_path / "file").write_bytes(bytes(4))
    with pytest.raises(
        CommandError, match=r"file: cannot be staged \(it ends at byte 4, before its 10\)"
    ):
        list(copy(parts, [0], tmp_path, clock.monotonic_ns, lambda _: None))


# ---------------------------------------------------------------------------------------- a dataset


def test_a_copy_is_the_dataset(dataset, tmp_path):
    """Byte for byte the same files but DALI's indexes, a manifest that verifies, and what it says
    of itself beside them."""
    found = staged(dataset, tmp_path / "local")

    before, after = folder_bytes(dataset.path), folder_bytes(found.path)
    assert {
        name: data
        for name, data in before.items()
        if name != "dataset.json" and not name.endswith(".idx")
    } == {name: data for name, data in after.items() if name not in ("dataset.json", STAGED_NAME)}
    assert dataset.manifest() == found.manifest()
    assert [] == plan_verification(found.path, deep=True, workers=1).run().problems
    assert [found.path] == list((tmp_path / "local").iterdir())


def test_a_view_is_copied_as_files(datasets, tmp_path):
    """Half a dataset by its index: only the chosen files are copied, and they are files, not
    links."""
    view = multiple_of(datasets["files"], Scale.parse("0.5x"))
    found = staged(view, tmp_path / "local")
    assert (18, False) == (
        sum(path.suffix == ".JPEG" for path in found.path.rglob("*")),
        any(map(Path.is_symlink, found.path.rglob("*"))),
    )
    assert [] == plan_verification(found.path, workers=1).run().problems


def test_the_facts_are_those_of_the_copy(dataset, tmp_path):
    """Files and bytes as they lie there; the second time nothing is copied."""
    (tmp_path / "local").mkdir()
    staging = Staging(dataset, tmp_path / "local", keep=True)
    facts, again = staging.run(), staging.run()
    size = sum(os.stat(path).st_size for path in dataset.data_files())
    assert (size, size, False) == (facts.bytes, facts.copied_bytes, facts.reused)
    assert (0, True, len(dataset.data_files())) == (again.copied_bytes, again.reused, again.files)


@pytest.mark.parametrize("form", ["files", "lmdb"])
def test_an_interrupted_copy_goes_on(datasets, tmp_path, form):
    """What was copied before an interrupt is not copied again; until it is whole the folder holds
    no dataset."""
    (tmp_path / "local").mkdir()
    dataset, copied = datasets[form], []
    staging = Staging(dataset, tmp_path / "local", keep=True, part_bytes=1 << 12, task_parts=1)

    def stop_halfway(count):
        copied.append(count)
        if sum(copied) > dataset.bytes // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        staging.run(stop_halfway)
    assert [] == list((tmp_path / "local").rglob("dataset.json"))

    facts = staging.run()

    assert 0 < facts.copied_bytes <= facts.bytes - sum(copied[:-1])
    found = Dataset.load(tmp_path / "local" / dataset.path.name)
    assert [] == plan_verification(found.path, workers=1).run().problems


def test_after_a_crash_of_the_machine_nothing_is_believed(datasets, tmp_path):
    """Written under another boot id, each part is compared with its hash, and copied again where it
    differs."""
    dataset = datasets["files"]
    work = interrupted(dataset, tmp_path / "local")
    (work / "boot").write_text("another")
    victims = sorted((work / "dataset").rglob("*.JPEG"))[:2]
    victims[0].write_bytes(bytes(victims[0].stat().st_size))  # never came to the disk
    victims[1].unlink()

    found = staged(dataset, tmp_path / "local")

    assert [] == plan_verification(found.path, deep=True, workers=1).run().problems


def test_a_torn_journal_is_read_as_far_as_it_is_whole(datasets, tmp_path):
    """A last line without an end, and lines that are none, tell of nothing."""
    dataset = datasets["files"]
    work = interrupted(dataset, tmp_path / "local")
    with open(work / "journal", "ab") as journal:
        journal.write(
            b"99999999999999 00\n-1 "
            + b"0" * 64
            + b"\nx\n\xff\n5 "
            + b"z" * 64
            + b"\n6 "
            + b"0" * 60
        )
    assert (
        []
        == plan_verification(staged(dataset, tmp_path / "local").path, deep=True, workers=1)
        .run()
        .problems
    )


def interrupted(dataset, folder):
    """The half-made folder of a copy that was interrupted after some of it."""
    folder.mkdir()
    done = []

    def stop(count):
        done.append(count)
        if len(done) > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Staging(dataset, folder, keep=True, task_parts=1).run(stop)
    return next(folder.glob(".*"))


@pytest.mark.job(every=4)
def test_a_killed_copy_is_no_dataset_and_goes_on(datasets, tmp_path):
    """SIGKILL at any instant: no manifest under the dataset's name, and the same command makes it
    whole."""
    large = multiple_of(datasets["files"], Scale.parse("60x"))
    (tmp_path / "local").mkdir()
    with jobs.started("stage", large.path, "local", cwd=tmp_path) as process:
        jobs.wait_until(
            lambda: any((tmp_path / "local").glob(".*/journal")) or process.poll() is not None
        )
        process.send_signal(signal.SIGKILL)
        process.communicate()
    there = (tmp_path / "local" / large.path.name / "dataset.json").exists()
    assert there == (process.returncode == 0)

    finished = jobs.ioprof("stage", large.path, "local", "--json", cwd=tmp_path)

    assert (0, large.records + 1) == (
        finished.code,
        json.loads(finished.out)["files"],
    ), finished.err
    assert [] == plan_verification(tmp_path / "local" / large.path.name, workers=1).run().problems


@pytest.mark.parametrize("form", ["files", "lmdb", "webdataset"])
def test_a_damaged_source_is_found_out_and_not_kept(small_tree, tmp_path, form):
    """A byte that is not the manifest's: the copy is refused, and nothing is left that a later try
    would believe."""
    dataset = made(small_tree, tmp_path / "data", layout=form)
    victim = next(
        path for path in sorted(dataset.path.rglob("*")) if path.suffix in (".JPEG", ".mdb", ".tar")
    )
    data = bytearray(victim.read_bytes())
    place = data.find(b"\xff\xd8") + 40
    data[place] ^= 1
    victim.write_bytes(data)
    with pytest.raises(DatasetError, match="its copy is not what its manifest says"):
        staged(dataset, tmp_path / "local")
    assert [] == list((tmp_path / "local").iterdir())


def test_what_lies_in_its_place_is_not_replaced(datasets, tmp_path):
    """Another dataset of the same name, or anything else, stays; the error says so."""
    (tmp_path / "local" / "files").mkdir(parents=True)
    (tmp_path / "local" / "files" / "thesis.txt").touch()
    with pytest.raises(CommandError, match="exists, and is no staged copy of"):
        staged(datasets["files"], tmp_path / "local")
    assert ["thesis.txt"] == os.listdir(tmp_path / "local" / "files")


@pytest.mark.system
def test_a_full_disk_is_found_before_anything_is_copied(datasets, small_disk):
    """The error says what is needed, what is there, and what to type."""
    disk = small_disk(1 << 16)
    with pytest.raises(
        CommandError,
        match=(
            r"needs about 0\.00\d GB, .* has 0\.000 GB free; give another folder, or"
            r" .*--dataset-scale 50%"
        ),
    ):
        staged(datasets["files"], disk)
    assert [] == list(disk.iterdir())


def test_only_what_nobody_keeps_is_removed(datasets, tmp_path):
    """A copy that went with a run goes with it; one that was asked for, and a folder that is no
    copy, stay."""
    kept = staged(datasets["lmdb"], tmp_path / "kept")
    assert (False, True) == (remove_staged(kept.path), kept.path.exists())
    passing = staged(datasets["lmdb"], tmp_path / "passing", keep=False)
    assert (True, False) == (remove_staged(passing.path), passing.path.exists())
    shutil.copytree(datasets["lmdb"].path, tmp_path / "original")
    assert (False, True) == (remove_staged(tmp_path / "original"), (tmp_path / "original").exists())


def test_a_copy_that_is_kept_on_is_kept(datasets, tmp_path):
    """What a run left, and somebody then asked for, does not go with the next run."""
    staged(datasets["files"], tmp_path / "local", keep=False)
    found = staged(datasets["files"], tmp_path / "local", keep=True)
    assert (True, True) == (read_staged(found.path)["keep"], read_staged(found.path)["synced"])


def test_a_copy_that_was_never_synced_does_not_outlive_the_machine(datasets, tmp_path):
    """A passing copy of another boot may have holes: it is made again."""
    found = staged(datasets["files"], tmp_path / "local", keep=False)
    keys = json.loads((found.path / STAGED_NAME).read_text())
    (found.path / STAGED_NAME).write_text(json.dumps({**keys, "boot": "another"}))
    victim = next(found.path.rglob("*.JPEG"))
    victim.write_bytes(b"")
    again = staged(datasets["files"], tmp_path / "local", keep=False)
    assert [] == plan_verification(again.path, workers=1).run().problems


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema": "ioprof.staged/1"', '{"schema": 1}', "\x00", "[" * 5000]
)
def test_a_hostile_description_is_no_copy(datasets, tmp_path, content):
    """Whatever staged.json holds, it is an error of ours or no copy, and nothing is removed for
    it."""
    found = staged(datasets["lmdb"], tmp_path / "local", keep=False)
    (found.path / STAGED_NAME).write_text(content)
    assert (None, False, True) == (
        read_staged(found.path),
        remove_staged(found.path),
        found.path.exists(),
    )


# -------------------------------------------------------------------------------------- the command


@pytest.mark.job
def test_the_command_copies_and_says_what_comes_next(datasets, tmp_path):
    """Rate, check, and the run on the copy."""
    (tmp_path / "local").mkdir()
    finished = jobs.ioprof("stage", datasets["files"].path, "local", cwd=tmp_path)
    assert 0 == finished.code, finished.err
    assert "37 files" in finished.out
    assert f"next: ioprof run {tmp_path}/local/files" in finished.err


@pytest.mark.job
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("missing", "local"), "missing: no such folder"),
        (("DATA", "nowhere"), "--stage-to nowhere: no such folder; make it first"),
        (("DATA", "."), "is where"),
        (("DATA", "local", "--verify", "hope"), "--verify 'hope': choose one of digest, size"),
        (("DATA", "auto"), "no local folder of this node"),
    ],
)
def test_bad_usage_is_one_line(datasets, tmp_path, arguments, expected):
    """The value as it was given, and what to type."""
    shutil.copytree(datasets["lmdb"].path, tmp_path / "data")
    (tmp_path / "local").mkdir()
    words = [str(tmp_path / "data") if word == "DATA" else word for word in arguments]
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    ended = subprocess.run(
        [os.sys.executable, "-m", "ioprof", "stage", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (2, True, False) == (
        ended.returncode,
        expected in ended.stderr,
        "Traceback" in ended.stderr,
    ), ended.stderr


# --------------------------------------------------------------------------- this node's own folder


def found(environment, tmp_path, kinds=None, types=None):
    kinds, types = kinds or {}, types or {}
    return node_local(
        environment,
        lambda path: kinds.get(path.name, "local"),
        lambda path: types.get(str(path), "ext4"),
    )


def test_the_scheduler_s_own_folder_comes_first(tmp_path):
    """What the scheduler made for the job is better than a general TMPDIR; a folder that is not
    there is passed over."""
    for name in ("job", "tmp"):
        (tmp_path / name).mkdir()
    both = {"TMPDIR": f"{tmp_path}/tmp", "SLURM_TMPDIR": f"{tmp_path}/job"}
    assert (tmp_path / "job", "SLURM_TMPDIR (Slurm's folder of the job)") == (
        found(both, tmp_path).folder,
        found(both, tmp_path).by,
    )
    assert tmp_path / "tmp" == found({**both, "SLURM_TMPDIR": f"{tmp_path}/gone"}, tmp_path).folder
    for name in ("T4TMPDIR", "PBS_JOBFS", "PBS_LOCALDIR", "SGE_LOCALDIR", "SGE_BEEONDDIR"):
        assert (
            tmp_path / "job"
            == found({"TMPDIR": f"{tmp_path}/tmp", name: f"{tmp_path}/job"}, tmp_path).folder
        )


def test_a_shared_folder_is_not_the_node_s_own(tmp_path):
    """TMPDIR on a shared file system is refused, by name; memory is taken where there is nothing
    else."""
    for name in ("tmp", "shm"):
        (tmp_path / name).mkdir()
    with pytest.raises(CommandError, match=r"TMPDIR: .*/tmp is shared\); name one: --stage-to"):
        found({"TMPDIR": f"{tmp_path}/tmp"}, tmp_path, {"tmp": "shared"})
    two = {"SLURM_TMPDIR": f"{tmp_path}/shm", "TMPDIR": f"{tmp_path}/tmp"}
    assert tmp_path / "tmp" == found(two, tmp_path, {"shm": "memory"}).folder
    assert tmp_path / "shm" == found(two, tmp_path, {"shm": "memory", "tmp": "shared"}).folder


def test_beeond_is_of_the_job_though_it_is_a_shared_file_system(tmp_path):
    """Named by the scheduler; and nothing is taken for it that is not mounted as such."""
    (tmp_path / "beeond").mkdir()
    assert (
        "BeeOND"
        in found({"SGE_BEEONDDIR": f"{tmp_path}/beeond"}, tmp_path, {"beeond": "shared"}).by
    )


@pytest.mark.parametrize("value", ["", "relative", "/nowhere/at/all", "/dev/null"])
def test_what_is_no_folder_is_passed_over(tmp_path, value):
    """A variable may hold anything."""
    with pytest.raises(CommandError, match="no local folder of this node"):
        found({"SLURM_TMPDIR": value}, tmp_path)
