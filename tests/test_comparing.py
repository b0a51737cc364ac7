"""Whether runs differ, by cause, with intervals from their steps."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_simulator import Pipeline
from sample_run import sample_run

import ioprof
from ioprof.analysis.comparing import difference
from ioprof.cli import main
from ioprof.format.run_record import HostRecord, SourceRecord
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace
from ioprof.recording.source_state import source_state
from ioprof.report.run import Run

MS = 1_000_000
STEPS = 300


def job(seed: int, fetch_ms: float = 20.0, consume_ms: float = 5.0) -> Trace:
    """A loop whose times vary by a third from batch to batch."""
    random = np.random.default_rng(seed)
    fetch, consume = (
        [int(middle * MS * each) for each in random.uniform(0.67, 1.33, STEPS)]
        for middle in (fetch_ms, consume_ms)
    )
    return Pipeline(fetch, consume).trace()


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_identical_runs_have_no_difference(seed: int) -> None:
    """Nor does any of their causes, and nothing fails."""
    found = ioprof.compare(job(seed), job(seed + 1))
    assert "no difference" in str(found)
    assert () == found.slower_than(0.05)


def test_a_slower_run_names_the_cause() -> None:
    """Decoding takes 10 % longer; the differences of the causes sum to that of the step."""
    found = difference(Run.of(job(1)), Run.of(job(2, fetch_ms=22.0)))
    assert found.step is not None
    assert found.step.differs
    assert found.ratio == pytest.approx(1.1, abs=0.03)
    assert ["decode"] == [entry.cause for entry in found.causes if entry.differs]
    assert sum(entry.other_s - entry.first_s for entry in found.causes) == pytest.approx(
        found.step.other_s - found.step.first_s
    )
    assert found.step.low_s <= 0.002 <= found.step.high_s


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6))
def test_order_of_runs_turns_the_sign(seed: int) -> None:
    """And nothing else: of A against B, and B against A."""
    first, other = Run.of(job(seed)), Run.of(job(seed + 7, fetch_ms=25.0))
    there, back = difference(first, other), difference(other, first)
    assert there.step is not None
    assert back.step is not None
    assert (there.step.low_s, there.step.high_s) == (
        pytest.approx(-back.step.high_s),
        pytest.approx(-back.step.low_s),
    )
    assert [entry.differs for entry in there.causes] == [entry.differs for entry in back.causes]


def test_time_that_moves_to_another_cause_is_told() -> None:
    """A step of the same length, of which the wait is less and compute is more."""
    found = ioprof.compare(job(1, 20.0, 5.0), job(2, 20.0, 12.0))
    assert "no difference" in str(found)
    assert "but the time went elsewhere" in " ".join(str(found).split())


def test_fail_above_ends_with_1(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    """If a run is slower by more than that; not for a faster or an equal one, nor within the limit.
    Wrong limits are refused."""
    for name, seed, fetch_ms in (("first", 1, 20.0), ("equal", 2, 20.0), ("slow", 3, 23.0)):
        job(seed, fetch_ms).save(tmp_path / name)
    first, equal, slow = (str(tmp_path / name) for name in ("first", "equal", "slow"))
    assert 0 == main(["compare", first, equal, "--fail-above", "5%"])
    assert 1 == main(["compare", first, slow, "--fail-above", "5%"])
    assert "longer than in the first run, most of it decode" in " ".join(
        capsys.readouterr().err.split()
    )
    assert 0 == main(["compare", first, slow, "--fail-above", "30%"])
    assert 0 == main(["compare", slow, first, "--fail-above", "5%"])
    assert 1 == main(["compare", first, equal, slow, "--json", "--fail-above", "5%"])
    for wrong in ("5", "much%", "-1%", "nan%"):
        assert 2 == main(["compare", first, slow, "--fail-above", wrong]), wrong


def test_too_few_steps_cannot_be_compared() -> None:
    """It says so, and with a limit it fails."""
    short = Pipeline([MS] * 5, [MS] * 5).trace()
    found = ioprof.compare(job(1), short)
    assert "cannot be compared" in str(found)
    assert 1 == len(found.slower_than(0.05))
    assert "fewer than 8 steady steps" in found.differences[0].to_dict()["reason"]
    assert set(CAUSES) >= {entry.cause for entry in found.differences[0].causes}


def test_a_comparison_says_what_changed() -> None:
    """An argument, a version, a variable, a host and the state of the page cache are named; of the
    same run nothing is."""
    first = sample_run(run={"command": "python train.py --workers 1 --lr 0.1"}, steps=8).trace
    facts = first.run.replace(
        command="python train.py --workers 4 --lr 0.1",
        versions={"torch": "2.13.0"},
        environment={"OMP_NUM_THREADS": "8"},
        hosts=(HostRecord(name="node2"),),
    )
    cached = first.spans.with_columns(
        source=pl.when(pl.col("kind") == "read")
        .then(pl.lit("page_cache"))
        .otherwise(pl.col("source").cast(pl.String))
    )
    other = Trace(facts, cached.cast({"source": first.spans.schema["source"]}), first.files)

    changes = {each.what: each for each in ioprof.compare(first, other).changes[0]}
    assert ("--workers 1", "--workers 4") == (
        changes["arguments"].first,
        changes["arguments"].other,
    )
    assert {"arguments", "torch", "OMP_NUM_THREADS", "host", "page cache"} == changes.keys()
    assert "arguments --workers 1 → --workers 4; torch none → 2.13.0" in str(
        ioprof.compare(first, other)
    ).replace("\n", " ")
    assert ((),) == ioprof.compare(first, first).changes


def git(folder: Path, *words: str) -> str:
    """What git prints, without the configuration of this machine."""
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    author = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "-c",
        "init.defaultBranch=main",
    )
    ended = subprocess.run(
        ["git", *author, *words], cwd=folder, env={**os.environ, **own}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return ended.stdout.strip()


@pytest.mark.job
def test_commit_and_uncommitted_files_of_the_script_are_told(tmp_path: Path) -> None:
    """As git says them: of a branch, of a detached head, of packed references, of a worktree, with
    a file that has changed; and no program of the repository is started."""
    if shutil.which("git") is None:
        pytest.skip("no git on this machine")
    top, seen = tmp_path / "project", tmp_path / "seen"
    (top / "jobs").mkdir(parents=True)
    script = top / "jobs" / "train.py"
    script.write_text("1\n")
    git(top, "init", "-q")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "a")
    hook = f"#!/bin/sh\ntouch {seen}\n"
    for name in ("post-index-change", "fsmonitor-watchman"):
        (top / ".git" / "hooks" / name).write_text(hook)
        (top / ".git" / "hooks" / name).chmod(0o755)
    git(top, "config", "core.fsmonitor", str(top / ".git" / "hooks" / "fsmonitor-watchman"))
    command = ["python", str(script)]

    first = source_state(command, os.environ)
    assert first == SourceRecord(str(top), "main", git(top, "rev-parse", "HEAD"), 0, {})
    script.write_text("2\n")
    changed = source_state(command, os.environ)
    assert changed is not None
    assert changed.replace(changed=0, files={}) == first
    assert changed.changed == 1
    assert changed.files["jobs/train.py"] == hashlib.sha256(b"2\n").hexdigest()[:12]
    seen.unlink(missing_ok=True)
    assert source_state(command, os.environ) == changed
    assert not seen.exists()

    git(top, "commit", "-q", "-a", "-m", "b")
    git(top, "pack-refs", "--all")
    head = git(top, "rev-parse", "HEAD")
    packed = source_state(command, os.environ)
    assert packed is not None
    assert (packed.commit, packed.branch, packed.changed) == (head, "main", 0)
    git(top, "worktree", "add", "-q", "-b", "other", str(tmp_path / "other"), "HEAD~1")
    tree = source_state(["python", str(tmp_path / "other/jobs/train.py")], os.environ)
    assert tree is not None
    assert (tree.commit, tree.branch) == (first.commit, "other")
    git(top, "checkout", "-q", "--detach")
    detached = source_state(command, os.environ)
    assert detached is not None
    assert (detached.commit, detached.branch) == (head, None)
    without = source_state(command, {"PATH": str(tmp_path)})
    assert without is not None
    assert (without.commit, without.changed) == (head, None)

    base = sample_run(steps=8).trace
    before, after = (
        Trace(base.run.replace(source=source), base.spans, base.files)
        for source in (changed, packed)
    )
    changes = {each.what: each for each in ioprof.compare(before, after).changes[0]}
    assert changes["commit"].other == f"{head[:12]} (main)"
    assert changes["uncommitted jobs/train.py"].other == ""
    unknown = Trace(base.run.replace(source=without), base.spans, base.files)
    assert {"commit"} == {each.what for each in ioprof.compare(before, unknown).changes[0]}


def test_a_script_without_a_repository_is_known_by_its_content(tmp_path: Path) -> None:
    """And a command without a script, outside of a repository, by nothing."""
    script = tmp_path / "a.py"
    script.write_text("1")
    assert source_state(["python", str(script)], {}) == SourceRecord(
        files={"a.py": hashlib.sha256(b"1").hexdigest()[:12]}
    )
    (tmp_path / ".git").write_text("gitdir: /nonexistent")
    assert source_state(["python", str(script)], {}) is None
