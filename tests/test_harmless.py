"""ioprof removes and overwrites only what it can prove to be its own; a folder from somebody else
is data.

All removals and overwrites of the code, with the proof that each needs:

    what                             where                                proof
    a spool                          recording/spool.py                   token, owner, inode, mode; each file by its name
    the marker of a run folder       recording/pending_run.py             the spool's token
"""  # noqa: E501

import io
import json
import os
import random
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import tempfile
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import strange_folders
import torch

from ioprof.cli import main
from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate
from ioprof.errors import CommandError
from ioprof.format.dataset import Dataset
from ioprof.format.run_record import RunRecord
from ioprof.format.trace import Trace
from ioprof.instrument import recorder
from ioprof.instrument.span import span
from ioprof.jobs.demo import _prepare
from ioprof.jobs.foreign_data import open_data
from ioprof.jobs.staged.staging import Staging, remove_staged
from ioprof.recording.gathering import gather
from ioprof.recording.pending_run import PendingRun
from ioprof.recording.run_folder import MARKER, RUN_FILES, check_output, create_output
from ioprof.reporter import SILENT
from ioprof.train import checkpoints

JOB: Final = "job.json"
EXPERIMENT: Final = {"learning_rate": 0.1, "model": "resnet50"}

Photograph = dict[str, tuple[Any, ...]]


def photograph(folder: Path) -> Photograph:
    """All that is below a folder: names, modes, times, and contents or targets of links."""
    found: Photograph = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        content: object = None
        if stat.S_ISLNK(status.st_mode):
            content = path.readlink()
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (
            status.st_mode,
            status.st_ino,
            status.st_mtime_ns,
            content,
        )
    return found


@pytest.fixture
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process."""
    (folder := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def recorded_into(out: Path) -> Path:
    """The spool of a recording of one span whose ioprof ended before it made the run folder
    `out`."""
    found = PendingRun(out, force=False, run=RunRecord(name="x", status="running"))
    found.begin()
    recorder.start(found.spool)
    with span("decode"):
        pass
    recorder.stop()
    return found.spool


def rewritten(path: Path, **changed: Any) -> None:
    """Change keys of a JSON file; those that are None go."""
    keys = {**json.loads(path.read_text()), **changed}
    path.write_text(json.dumps({key: value for key, value in keys.items() if value is not None}))


def of_an_earlier_version(spool: Path, out: Path) -> None:
    """What both looked like before they had a token."""
    rewritten(spool / JOB, spool=None)
    rewritten(out / MARKER, token=None, uid=None)


def refused(folder: Path, out: Path | None = None, force: bool = False) -> str:
    """Why `gather` refuses a folder, in one line that says what to type or to look for."""
    with pytest.raises(CommandError) as raised:
        gather([folder], out, force)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def gathered(folder: Path, out: Path | None = None) -> tuple[Path, list[str]]:
    """The run folder that `gather` makes, whole, and what is said beside its name."""
    said: list[str] = []
    run = gather([folder], out, reporter=Lines(said))
    assert run.folder is not None
    assert 1 == Trace.load(run.folder).num_spans
    return run.folder, [line for line in said if not line.startswith("run folder: ")]


class Lines:
    """A reporter that keeps the lines."""

    def __init__(self, lines: list[str]) -> None:
        self.say = lines.append


# ----------------------------------------------------------------------------- a folder of the user


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """A user's folder with a job.json, data and checkpoints."""
    folder = tmp_path / "experiment"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "last.pt").write_bytes(b"weights")
    (folder / "train.csv").write_text("1,2\n")
    (folder / JOB).write_text(json.dumps(EXPERIMENT))
    return folder


@pytest.mark.parametrize(
    "content",
    [
        EXPERIMENT,
        {"launcher": "slurm"},
        {"launcher": [1, 1]},
        {"launcher": None, "out": "/"},
        {},
        [],
    ],
)
@pytest.mark.parametrize("way", ["by name", "as .", "as ..", "by a link"])
def test_a_folder_with_a_job_json_of_its_own_is_not_touched(
    content: object, way: str, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever that file says, and however the folder is named."""
    (experiment / JOB).write_text(json.dumps(content))
    (tmp_path / "link").symlink_to(experiment)
    before = photograph(tmp_path)
    monkeypatch.chdir(experiment / ("checkpoints" if way == "as .." else ""))
    named = {
        "by name": experiment,
        "as .": Path(),
        "as ..": Path(".."),
        "by a link": tmp_path / "link",
    }[way]

    said = refused(named)

    assert "nothing to gather" in said or "ioprof gather" in said or "not a description" in said
    assert before == photograph(tmp_path)


@pytest.mark.parametrize("name", ["experiment", "ioprof-a1b2c3d4"])
def test_even_if_it_is_gathered_to_another_folder_it_stays(
    name: str, experiment: Path, tmp_path: Path
) -> None:
    """A file that says it is of ioprof, and a name such as ioprof gives, prove nothing."""
    folder = experiment.rename(tmp_path / name)
    (folder / JOB).write_text(json.dumps({**EXPERIMENT, "launcher": [1, 1], "out": str(tmp_path)}))
    folder.chmod(0o700)
    before = photograph(folder)

    said: list[str] = []
    gather([folder], tmp_path / "run", reporter=Lines(said))

    assert before == photograph(folder)
    assert f"not removed, since {folder}" in said[0]


def test_a_parent_of_everything_is_not_gathered(
    tmp_path: Path, spools: Path, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gather ~` and `gather /tmp`, which have spools and run folders below them."""
    recorded_into(tmp_path / "run")
    (tmp_path / JOB).write_text(json.dumps(EXPERIMENT))
    before = photograph(tmp_path)
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, spools, Path(), Path("/")):
        assert re.search("nothing to gather|--out RUN", refused(folder))
    assert before == photograph(tmp_path)


# ------------------------------------------------------------------ a run folder from somebody else


@pytest.mark.parametrize("content", [None, EXPERIMENT, {"launcher": [1, 1]}])
@pytest.mark.parametrize(
    "place", ["experiment", "experiment/", "/", "..", "", "link", "ioprof-a1b2c3d4"]
)
def test_a_marker_may_name_any_folder(
    place: str, content: object, experiment: Path, tmp_path: Path
) -> None:
    """`gather RUN` of a stranger's folder: what its marker names stays, and nothing is written into
    the folder."""
    other = tmp_path / "other"
    other.mkdir()
    if content is None:
        (experiment / JOB).unlink()
    else:
        (experiment / JOB).write_text(json.dumps(content))
    shutil.copytree(experiment, tmp_path / "ioprof-a1b2c3d4").chmod(0o777)
    (tmp_path / "link").symlink_to(experiment)
    named = place if place in ("/", "..", "") else str(tmp_path / place)
    (other / MARKER).write_text(json.dumps({"spool": named, "host": os.uname().nodename}))
    before = photograph(tmp_path)

    refused(other)

    assert before == photograph(tmp_path)


def test_a_marker_of_a_stranger_may_name_a_spool_of_ones_own(tmp_path: Path, spools: Path) -> None:
    """Without its token, or with another: neither the spool goes nor is its run written to the
    stranger's folder."""
    spool = recorded_into(tmp_path / "run")
    (other := tmp_path / "other").mkdir()
    before = photograph(spools)
    for token in (None, secrets.token_hex(32), "", 7):
        (other / MARKER).write_text(
            json.dumps({"spool": str(spool), "host": "a", "token": token, "uid": os.geteuid()})
        )
        assert "another recording" in refused(other)
    assert [MARKER] == os.listdir(other)
    assert before == photograph(spools)
    assert (tmp_path / "run", []) == gathered(tmp_path / "run")


@pytest.mark.parametrize("how", ["link", "mode", "owner", "name"])
def test_a_spool_must_be_as_ioprof_makes_it(how: str, tmp_path: Path, spools: Path) -> None:
    """Of this user, no link, private, and named so; also with the right token."""
    spool, out = recorded_into(tmp_path / "run"), tmp_path / "run"
    if how == "link":
        spool = spool.rename(tmp_path / "elsewhere")
        (link := spools / "ioprof-a1b2c3d4").symlink_to(spool)
        rewritten(out / MARKER, spool=str(link))
    if how == "name":
        spool = spool.rename(spools / "precious")
        rewritten(out / MARKER, spool=str(spool))
    if how == "mode":
        spool.chmod(0o777)
    if how == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(spool, 65534, -1)
    before = photograph(tmp_path)

    assert f"{MARKER} names" in refused(out)

    assert before == photograph(tmp_path)


def test_out_of_a_job_json_may_name_any_run(experiment: Path, tmp_path: Path, spools: Path) -> None:
    """A run that is there, a folder of the user, the root: `gather SPOOL` writes to none of them,
    and asks for --out."""
    recorded_into(tmp_path / "precious")
    gathered(tmp_path / "precious")
    spool = recorded_into(tmp_path / "run")
    for out in (
        tmp_path / "precious",
        experiment,
        Path("/"),
        spool,
        tmp_path / "new",
        "relative",
        7,
        None,
    ):
        rewritten(
            spool / JOB, out=None if out is None else out if out in ("relative", 7) else str(out)
        )
        before = photograph(tmp_path)
        assert f"ioprof gather {spool} --out RUN" in refused(spool)
        assert before == photograph(tmp_path)
    assert "exists" in refused(spool, tmp_path / "precious")
    assert (tmp_path / "new", []) == gathered(spool, tmp_path / "new")
    assert not spool.exists()


def test_out_of_a_job_json_is_honoured_with_the_same_token(tmp_path: Path, spools: Path) -> None:
    """Named by its spool, a recording becomes the run folder that has its marker."""
    spool = recorded_into(tmp_path / "run")
    assert (tmp_path / "run", []) == gathered(spool)
    assert ([], False) == (os.listdir(spools), (tmp_path / "run" / MARKER).exists())


# --------------------------------------------------------------------------------------- what moves


def test_a_run_folder_that_was_renamed_is_gathered(tmp_path: Path, spools: Path) -> None:
    """Its token says whose it is."""
    recorded_into(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "better-name")
    assert (tmp_path / "better-name", []) == gathered(tmp_path / "better-name")
    assert [] == os.listdir(spools)


def test_a_copy_of_a_run_folder_takes_nothing_from_the_original(
    tmp_path: Path, spools: Path
) -> None:
    """It is gathered where nothing is overwritten, and the spool stays for the original."""
    spool = recorded_into(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    before = photograph(spools)
    folder, said = gathered(tmp_path / "copy")
    assert (tmp_path / "copy", before) == (folder, photograph(spools))
    assert f"is a copy of {tmp_path / 'run'}" in said[0]
    assert f"rm -r {spool}" in said[0]
    before = photograph(tmp_path)
    assert "run.json, which is not replaced" in refused(tmp_path / "copy").replace(
        "spans.parquet", "run.json"
    )
    assert before == photograph(tmp_path)
    assert (tmp_path / "run", []) == gathered(tmp_path / "run")


def test_a_copy_of_a_spool_stays(tmp_path: Path, spools: Path) -> None:
    """As it was unpacked from an archive, or copied to be looked at; even under the same name."""
    spool = recorded_into(tmp_path / "run")
    shutil.copytree(spool, tmp_path / spool.name)
    shutil.rmtree(spool)
    before = photograph(tmp_path / spool.name)
    _, said = gathered(tmp_path / spool.name, tmp_path / "other")
    assert "is a copy" in said[0]
    assert before == photograph(tmp_path / spool.name)


def test_what_an_earlier_version_left_is_gathered_and_stays(tmp_path: Path, spools: Path) -> None:
    """Without a token it may be anybody's: the run is made by either name, once, and one line says
    what can be removed."""
    for number, by_spool in enumerate((False, True)):
        spool, out = recorded_into(tmp_path / f"run{number}"), tmp_path / f"run{number}"
        of_an_earlier_version(spool, out)
        before = photograph(spool)
        folder, (said,) = gathered(spool if by_spool else out)
        assert (out, before) == (folder, photograph(spool))
        assert f"rm -r {spool} {out / MARKER}" in said
        assert "not replaced" in refused(out)


def test_nothing_is_dropped_from_a_spool_without_a_proof(tmp_path: Path, spools: Path) -> None:
    """`kept.json` of a stranger may name any file of the folder as one to remove or to make holes
    in."""
    from ioprof.ingest.kept_state import KeptState

    spool = recorded_into(tmp_path / "run")
    (ring,) = spool.glob("*.ring")
    KeptState(host="a", wall_offset_ns=0, keep_ns=10**10, removing=[ring.name]).save(spool)
    of_an_earlier_version(spool, tmp_path / "run")
    before = photograph(tmp_path)
    assert "--keep" in refused(tmp_path / "run")
    assert before == photograph(tmp_path)


# --------------------------------------------------------------------------------- removing a spool


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "x.ring",
        "facts.jsonl",
        "config.json.bak",
        ".hidden",
        "ioprof-job-notes",
        "job.json.orig",
    ],
)
def test_what_a_user_puts_into_a_spool_stays(name: str, tmp_path: Path, spools: Path) -> None:
    """It is named, and all of ioprof's is gone."""
    spool = recorded_into(tmp_path / "run")
    (spool / name).write_text("mine")
    _, said = gathered(tmp_path / "run")
    assert [f"not removed, since ioprof did not write it: {spool / name}"] == said
    assert [name] == os.listdir(spool)


def test_no_link_in_a_spool_is_followed(tmp_path: Path, spools: Path, experiment: Path) -> None:
    """Links under names that ioprof gives are no files of ioprof; those in the job's temporary
    folder go, what they name stays."""
    spool = recorded_into(tmp_path / "run")
    (spool / "facts-a-1.jsonl").symlink_to(experiment / "train.csv")
    (spool / "ioprof-job-a1b2c3d4").symlink_to(experiment)
    (spool / "ioprof-job-a1b2c3d5").mkdir()
    (spool / "ioprof-job-a1b2c3d5" / "inside").symlink_to(experiment)
    (spool / "progress").mkdir()
    before = photograph(experiment)
    _, said = gathered(tmp_path / "run")
    assert before == photograph(experiment)
    assert {"facts-a-1.jsonl", "ioprof-job-a1b2c3d4", "progress"} == set(os.listdir(spool))
    assert [
        f"not removed, since ioprof did not write it: {spool}/facts-a-1.jsonl and 2 more"
    ] == said


def test_a_run_into_a_folder_that_others_wrote_to_meanwhile_removes_only_its_own_marker(
    tmp_path: Path, spools: Path
) -> None:
    """Somebody replaced the marker: it stays."""
    found = PendingRun(tmp_path / "run", force=False, run=RunRecord(name="x", status="running"))
    found.begin()
    (tmp_path / "run" / MARKER).write_text("mine")
    found.give_up(ValueError())
    assert ("mine", []) == ((tmp_path / "run" / MARKER).read_text(), os.listdir(spools))


# ----------------------------------------------------------------------------- files that never end


@pytest.mark.parametrize("kind", ["pipe", "zero"])
@pytest.mark.parametrize("name", [JOB, MARKER, "run.json", "job.log"])
def test_a_file_that_never_ends_is_no_file_of_ioprof(name: str, kind: str, tmp_path: Path) -> None:
    """A pipe, which blocks whoever opens it, and a link to /dev/zero: refused at once."""
    (folder := tmp_path / "folder").mkdir()
    os.mkfifo(folder / name) if kind == "pipe" else (folder / name).symlink_to("/dev/zero")
    for use in (
        lambda: gather([folder]),
        lambda: check_output(folder, force=True),
        lambda: create_output(folder, force=True),
    ):
        with pytest.raises(CommandError):
            use()
    assert [name] == os.listdir(folder)
    (folder / name).unlink()  # else conftest.py reads it


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_a_job_json_that_never_ends_is_refused(kind: str, tmp_path: Path, spools: Path) -> None:
    """In the spool that a marker names."""
    spool = recorded_into(tmp_path / "run")
    (spool / JOB).unlink()
    os.mkfifo(spool / JOB) if kind == "pipe" else (spool / JOB).symlink_to("/dev/zero")
    assert "no regular file" in refused(tmp_path / "run")


# -------------------------------------------------------------------------------------------- --out


@pytest.mark.job
def test_a_very_deep_folder_is_made(tmp_path: Path) -> None:
    """1,100 levels, more than Python's limit of nested calls; one whose path is too long for the
    kernel is refused in one line."""
    deep = tmp_path / Path(*["d"] * 1100)
    check_output(deep, force=False)
    create_output(deep, force=False)
    assert deep.is_dir()
    with pytest.raises(CommandError, match="cannot be made"):
        check_output(tmp_path / Path(*["d"] * 3000), force=False)
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # pytest cannot


# ------------------------------------------------------------- datasets, copies, checkpoints, demos


@pytest.fixture
def dataset(tmp_path: Path, small_tree: Path) -> Dataset:
    """A small one of the layout `files`."""
    return convert(
        small_tree, tmp_path / "dataset", ConvertOptions(layout="files", image="original")
    )


@pytest.mark.job
@pytest.mark.parametrize("layout", ["files", "lmdb", "webdataset", "parquet", "raw"])
def test_a_dataset_is_replaced_by_force_unless_it_holds_something_else(
    layout: Any, tmp_path: Path, small_tree: Path
) -> None:
    """What a user put beside its files is named, and all stays as it is."""
    options = ConvertOptions(layout=layout, image="original", force=True)
    folder = convert(small_tree, tmp_path / "dataset", options).path
    convert(small_tree, folder, options)
    (folder / "notes.txt").write_text("mine")
    before = photograph(folder)
    with pytest.raises(CommandError, match=r"contains notes.txt"):
        convert(small_tree, folder, options)
    assert before == photograph(folder)


@pytest.mark.parametrize("form", ["tree", "tars"])
def test_generated_images_are_replaced_by_force_unless_they_hold_something_else(
    form: Any, tmp_path: Path
) -> None:
    """The folders of classes are ioprof's; a file beside them is not."""
    options = GenerateOptions(images=4, classes=2, workers=1, form=form, force=True)
    for _ in range(2):
        generate(tmp_path / "images", options)
    (tmp_path / "images" / "notes.txt").write_text("mine")
    before = photograph(tmp_path)
    with pytest.raises(CommandError, match=r"contains notes.txt"):
        generate(tmp_path / "images", options)
    assert before == photograph(tmp_path)


@pytest.mark.job
def test_a_staged_copy_of_before_a_crash_is_removed_file_by_file(
    dataset: Dataset, tmp_path: Path
) -> None:
    """What a user put into it stays, and is named; without that it is made anew."""
    (stage := tmp_path / "stage").mkdir()
    staging = Staging(dataset, stage, keep=False)
    staging.run()
    rewritten(staging.destination / "staged.json", boot="another", synced=False)
    (mine := staging.destination / "train" / "mine").mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(CommandError, match=r"holds train/mine/notes.txt"):
        Staging(dataset, stage, keep=False).run()
    assert [mine / "notes.txt"] == [
        path for path in staging.destination.rglob("*") if not path.is_dir()
    ]
    shutil.rmtree(staging.destination)
    staging.run()
    rewritten(staging.destination / "staged.json", boot="another", synced=False)
    assert not staging.run().reused
    (staging.destination / "notes.txt").write_text("mine")
    assert not remove_staged(staging.destination)
    assert ["notes.txt"] == os.listdir(staging.destination)


@pytest.mark.job
def test_a_staged_copy_that_is_not_kept_leaves_nothing(dataset: Dataset, tmp_path: Path) -> None:
    """Its files are those of the dataset, and all go."""
    (stage := tmp_path / "stage").mkdir()
    staging = Staging(dataset, stage, keep=False)
    staging.run()
    assert remove_staged(staging.destination)
    assert [] == os.listdir(stage)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_checkpoints_of_other_programs_stay(tmp_path: Path) -> None:
    """torchtitan gives its folders the same names; of ioprof's own the last two stay."""
    for name in ("step-1", "step-2", "old.unfinished", "step-x.unfinished"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".metadata").write_text("mine")
    before = {name: photograph(tmp_path / name) for name in os.listdir(tmp_path)}
    for step in (3, 4, 5, 6):
        checkpoints.save(tmp_path, step, {"weight": torch.ones(2)}, rank=0, num_ranks=1)
    assert {*before, "step-5", "step-6"} == set(os.listdir(tmp_path))
    assert before == {name: photograph(tmp_path / name) for name in before}
    assert checkpoints.foreign_unfinished(tmp_path) is None
    (tmp_path / "step-7.unfinished").mkdir()
    assert tmp_path / "step-7.unfinished" == checkpoints.foreign_unfinished(tmp_path)


def test_a_demo_replaces_only_what_it_made(tmp_path: Path) -> None:
    """With --force as well: what the user put beside it stays."""
    out = tmp_path / "demo"
    _prepare(out, force=False)
    (out / "datasets").mkdir()
    (out / "datasets" / "mine").write_text("mine")
    (out / "notes.txt").write_text("mine")
    before = photograph(out / "datasets")
    with pytest.raises(CommandError, match="--force"):
        _prepare(out, force=False)
    _prepare(out, force=True)
    assert before == photograph(out / "datasets")
    assert {".ioprof-demo", "datasets", "notes.txt"} == set(os.listdir(out))


def test_an_index_is_replaced_file_by_file(small_tree: Path, tmp_path: Path) -> None:
    """The data that it names, by a link, is not touched; a file of the user in its folder is
    named."""
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    folder = open_data(small_tree, environment, SILENT).path
    before = photograph(small_tree)
    (folder / "stamps.json").write_text("[]]")
    assert folder == open_data(small_tree, environment, SILENT).path
    (folder / "stamps.json").write_text("[]]")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(CommandError, match=r"notes.txt: is no file of an index"):
        open_data(small_tree, environment, SILENT)
    assert "mine" == (folder / "notes.txt").read_text()
    assert before == photograph(small_tree)


# -------------------------------------------------------------------------- any folder, any command


def changes(before: Photograph, after: Photograph) -> list[str]:
    """What is not as it was. New entries are no change, nor is the time of the folder that they are
    in."""
    with_new = {os.path.dirname(path) or "." for path in after.keys() - before.keys()}  # noqa: PTH120 - of names in a photograph
    found = []
    for path, was in before.items():
        now = after.get(path)
        is_same = was == now or (path in with_new and now is not None and was[:2] == now[:2])
        if not is_same:
            found.append(path)
    return found


def new_outside(before: Photograph, after: Photograph, folder: Path, line: list[str]) -> list[str]:
    """What appeared where the command was not asked to write: beside what it names, and beside a
    pending run folder."""
    last = os.path.relpath(line[-1], folder)
    asked = {
        "stage": last,
        "demo": last,
        "snapshot": last,
        "import": last,
        "report": last if "--html" in line else None,
    }.get(line[0])
    if line[0] == "convert":
        asked = os.path.relpath(line[3], folder)
    if line[0] == "gather" and "--out" in line:
        asked = last
    pending = {str(Path(path).parent) for path in before if Path(path).name == MARKER}
    parts = {
        str(Path(path).parent).removesuffix(".parts")
        for path in before
        if Path(path).parent.name.endswith(".parts")
    }
    found = []
    for path in after.keys() - before.keys():
        is_asked = asked is not None and (
            path == asked or path.startswith((f"{asked}/", f"{asked}-")) or asked == "."
        )
        is_run = line[0] == "gather" and (
            (Path(path).name in RUN_FILES and str(Path(path).parent) in pending)
            or path in parts
            or str(Path(path).parent) in parts
        )
        if not is_asked and not is_run:
            found.append(path)
    return found


def act(line: list[str]) -> None:
    """Run a command in this process; of the demo only what it does before it makes anything."""
    if line[0] == "demo":
        with suppress(CommandError):
            _prepare(Path(line[-1]), force=False)
        return
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        main(line)


@pytest.fixture
def genuine(tmp_path: Path, spools: Path, small_tree: Path) -> strange_folders.Parts:
    """A run, a dataset, and a trace of torch.profiler."""
    recorded_into(tmp_path / "genuine-run")
    gathered(tmp_path / "genuine-run")
    made = convert(
        small_tree, tmp_path / "genuine-dataset", ConvertOptions(layout="files", image="original")
    )
    (trace := tmp_path / "genuine.json").write_text(
        json.dumps({"traceEvents": [], "schemaVersion": 1})
    )
    return strange_folders.Parts(tmp_path / "genuine-run", made.path, trace)


FOLDERS: Final = int(os.environ.get("IOPROF_STRANGE_FOLDERS", "60"))
"""How many random folders are tried; 10,000 take some minutes."""


@pytest.mark.system(every=4)
def test_no_command_changes_what_was_there(
    genuine: strange_folders.Parts,
    spools: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever lies in a folder of the user: no byte, mode, time, name or link of it changes, and
    nothing hangs.

    What is new is where the command was asked to write. IOPROF_STRANGE_FOLDERS sets the number of
    folders.
    """
    base = tmp_path_factory.mktemp("strange")
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))
    kept = photograph(genuine.run.parent)
    for number in range(FOLDERS):
        choice = random.Random(number)
        (folder := base / "folder").mkdir()
        strange_folders.fill(folder, genuine, choice)
        line = strange_folders.command(folder, choice)
        before = photograph(folder)
        act(line)
        after = photograph(folder)
        case = f"folder {number}: {shlex.join(line)}"
        assert ([], []) == (changes(before, after), new_outside(before, after, folder, line)), case
        assert [] == os.listdir(spools), case
        subprocess.run(["rm", "-rf", folder], check=True)
    assert kept == photograph(genuine.run.parent)


def test_a_link_that_leads_nowhere_makes_no_run(tmp_path: Path) -> None:
    """Where run.json is one, the folder is a stranger's, whatever else is in it."""
    (tmp_path / MARKER).write_text('{"spool": "/tmp/x"}')
    check_output(tmp_path, force=True)
    (tmp_path / "run.json").symlink_to(tmp_path / "gone")
    with pytest.raises(CommandError):
        check_output(tmp_path, force=True)
