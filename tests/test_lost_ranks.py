"""Jobs of which some ranks fail, are started again, or were not recorded: what is said of them, and
what is not."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from jobs import ioprof
from preload import needs_library
from repository import PROGRAMS
from test_hosts import IOPROF, environment, gather, task
from timeline import timeline

from ioprof.format.run_record import (
    AttemptRecord,
    ClockRecord,
    Failure,
    HostRecord,
    PartNumber,
    ProcessRecord,
)
from ioprof.format.trace import Trace
from ioprof.ingest.failures import Ends, failures_of
from ioprof.ingest.merging import merge_parts
from ioprof.recording.parts import unrecorded_nodes
from ioprof.report.run import Run
from ioprof.report.texts.statements import failure_lines

SECOND: Final = 1_000_000_000
TORCHRUN: Final = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
EXCHANGING: Final = (
    "step 0000000000 1111111111\ncompute ##........ ##........\ncomm ..######## ..########"
)
DECODING: Final = (
    "step 0000000000 1111111111\ndecode ########.. ########..\ncomm ........## ........##"
)


# ----------------------------------------------------------------------- ranks that are missing


def test_exchanges_with_ranks_that_were_not_recorded_get_no_verdict() -> None:
    """Nor advice about the exchange; the ranks are named first. Of all ranks the same is a
    verdict."""
    whole = Run.of(timeline(EXCHANGING, config={"ranks": 1})).summary
    part = Run.of(timeline(EXCHANGING, config={"ranks": 4})).summary
    assert ("exchange", ()) == (whole.verdict.bound_by, failure_lines(whole))
    assert part.verdict.bound_by is None
    assert part.run.missing is not None
    assert ((1, 2, 3), 4) == (part.run.missing.ranks, part.run.missing.num_ranks)
    assert failure_lines(part)[0].startswith("NOT RECORDED")
    assert ["record_ranks"] == [each.code for each in part.verdict.findings]


def test_a_verdict_about_something_else_stays() -> None:
    """What the recorded ranks did themselves is known."""
    found = Run.of(timeline(DECODING, config={"ranks": 4})).summary
    assert "decode" == found.verdict.bound_by
    assert failure_lines(found)[0].startswith("NOT RECORDED")


@pytest.mark.parametrize(
    ("command", "variables", "nodes"),
    [
        ("srun -N 2 sh train.sh", {}, 2),
        ("srun --nodes=2-4 sh -N 9", {}, 2),
        ("srun -N1 sh train.sh", {"SLURM_JOB_NUM_NODES": "8"}, 0),
        ("/usr/bin/srun -n 16 sh train.sh", {"SLURM_NNODES": "4"}, 4),
        ("srun -n 2 sh train.sh", {}, 0),
        ("sh -N 2", {"SLURM_NNODES": "4"}, 0),
    ],
)
def test_an_srun_over_several_nodes_is_found(
    command: str, variables: dict[str, str], nodes: int
) -> None:
    """By its own options, else by the allocation; options of its command are none of it."""
    assert nodes == unrecorded_nodes(command.split(), variables)


@pytest.mark.job(every=2)
def test_parts_are_named_by_their_numbers_and_one_can_be_gathered_alone(tmp_path: Path) -> None:
    """The task that is there says which is not, and what to type; the run of one part has it."""
    line = [*IOPROF, "record", "--quiet", "--no-stacks", "--out", "run", "--", "true"]
    own = environment(tmp_path, **task(0, 3))
    first = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=own, timeout=120)
    assert "which is part 0 of parts 0 to 2" in first.stderr
    assert "there are no parts 1, 2" in first.stderr
    refused = gather("run", cwd=tmp_path)
    assert (2, True) == (refused.returncode, "there are no parts 1, 2" in refused.stderr)
    (part,) = (tmp_path / "run.parts").iterdir()
    alone = gather(part, "--out", "alone", cwd=tmp_path)
    assert 0 == alone.returncode, alone.stderr
    assert 1 == len(Trace.load(tmp_path / "alone").run.parts)


# ------------------------------------------------------------------------------------ failures


def test_failures_are_in_the_order_of_time_with_the_cause_first() -> None:
    """A kill is seen late; the ranks that a launcher ends, and the launcher, come after it. A
    program that a rank ran is no rank."""
    ranks = [
        ProcessRecord("a", 10 + rank, 9, "rank", rank, first_ns=0, last_ns=SECOND)
        for rank in range(3)
    ]
    helper = ProcessRecord("a", 20, 10, "other", 0)
    seen = [
        (11, SECOND + 150_000_000, 9),
        (10, SECOND + 140_000_000, 1 << 8),
        (12, SECOND + 160_000_000, 15),
    ]
    ends = {
        ("a", 9): Ends(None, seen),
        ("a", 10): Ends(SECOND + 100_000_000, [(20, 5, 3 << 8)]),
    }
    command = Failure(what="torchrun exited with 1", time_ns=2 * SECOND, pid=9)
    found = failures_of([*ranks, helper], ends, [command], [HostRecord("a", killed_for_memory=1)])
    memory = "; the kernel killed a process of its host for lack of memory meanwhile"
    assert [
        (1, f"was killed by SIGKILL{memory}"),
        (0, "exited with 1"),
        (2, "was killed by SIGTERM"),
        (None, "torchrun exited with 1"),
    ] == [(each.rank, each.what) for each in found]


@pytest.mark.system(every=2)
@needs_library
@pytest.mark.parametrize(
    ("how", "what"), [("exit", "exited with 7"), ("kill", "was killed by SIGKILL")]
)
def test_the_rank_that_failed_is_named_before_its_launcher(
    tmp_path: Path, how: str, what: str
) -> None:
    """The real torchrun exits with 1, whatever its ranks did."""
    job = [*TORCHRUN, "--nproc-per-node", "2", PROGRAMS / "train_until_failure.py", 12, 1, how]
    done = ioprof("record", "--no-stacks", "--out", "run", "--", *job, cwd=tmp_path)
    run = Trace.load(tmp_path / "run").run
    assert (1, "failed") == (done.code, run.status)
    assert (1, what) == (run.failures[0].rank, run.failures[0].what)
    assert run.failures[-1].what.endswith("exited with 1")
    assert f"FAILED: rank 1: {what}" in done.err


# ------------------------------------------------------------------------------------ attempts


@pytest.mark.system(every=2)
@needs_library
def test_attempts_of_torchrun_are_told_apart(tmp_path: Path) -> None:
    """No step is of two attempts, all steps of both are there, and the time between is a phase of
    its own; the parts of the ledger sum to the job."""
    job = [*TORCHRUN, "--max-restarts", "1", "--nproc-per-node", "2"]
    job += [PROGRAMS / "train_until_failure.py", 12, 1, "exit"]
    done = ioprof("record", "--no-stacks", "--out", "run", "--", *job, cwd=tmp_path)
    assert 0 == done.code, done.err
    run = Run.load(tmp_path / "run")
    first, second = run.trace.run.attempts
    assert (0, 1) == (first.first_step, first.failure.rank if first.failure else None)
    assert second.first_step in (first.num_steps, first.num_steps + 1)
    assert 12 == second.num_steps
    steps = run.trace.structure.filter(kind="step")
    of_pids = steps.group_by("rank", "step").agg(pl.col("pid").n_unique())
    assert [1] == of_pids["pid"].unique().to_list()
    phases = {phase.name: phase.seconds for phase in run.summary.ledger.phases}
    ended = max(steps.filter(pl.col("step") < second.first_step)["end_ns"])
    begun = min(steps.filter(pl.col("step") >= second.first_step)["start_ns"])
    assert 0 < phases["restart"] <= (begun - ended) / 1e9 + 2
    assert sum(phases.values()) == pytest.approx(run.summary.ledger.wall_s)
    assert "attempt 1 made" in done.err
    assert run.trace.run.failures == ()


def test_attempts_have_the_same_numbers_in_all_parts_of_a_run() -> None:
    """One host was one step further than the other when its ranks were ended."""

    def part(rank: int, made: int) -> Trace:
        lane = f"step {'0' * 10}{'1' * 10}{str(made) * 10}"
        trace = timeline(lane, config={"ranks": 2})
        attempts = (AttemptRecord(0, 0, made), AttemptRecord(made, 0, 1))
        facts = trace.run.replace(
            attempts=attempts,
            hosts=(HostRecord(f"node{rank}"),),
            part=PartNumber(rank, 2, "one"),
            clocks=ClockRecord(kernel=f"node{rank}", zero_monotonic_ns=0),
            processes=(ProcessRecord(f"node{rank}", 1, None, "rank", rank),),
        )
        spans = trace.spans.with_columns(rank=pl.lit(rank, pl.Int32))
        return replace(trace, run=facts, spans=spans)

    whole = merge_parts([part(0, 2), part(1, 3)], "whole")
    assert [0, 3] == [each.first_step for each in whole.run.attempts]
    last = whole.structure.group_by("rank").agg(pl.col("step").max()).sort("rank")
    assert [3, 3] == last["step"].to_list()
