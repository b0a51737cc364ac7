"""What made a rank late: its time since it met the rank that waited for it, less that rank's own,
by cause."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples
from timeline import pid, timeline
from told import summarise

from ioprof.analysis.charge.blame import charges
from ioprof.analysis.charge.lateness import shared_out
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import CAUSES, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema

FACTS = {"config": {"device": "cuda", "workers": 1, "batch_size": 4}}

LOCAL_SGD = """
    step          00 111122223333 44444444
    wait          .. 1...2...3... ........
    fetch w0      .. 1...2...3... ........
    decode w0     .. #...#...#... ........
    compute       .. .111.222.333 ........
    comm          00 ............ 44444444
    step r1       00 1111111112222 3333444
    wait r1       .. 111111...2... 3......
    fetch r1 w0   .. 111111...2... 3......
    decode r1 w0  .. ######...#... #......
    compute r1    .. ......111.222 .333...
    comm r1       00 ............. ....444
"""
"""Rank 1 decoded for five instants more in the first of three steps; while rank 0 waits, it makes
its other steps as rank 0 did."""


# --------------------------------------------------------------------------------------------- laws


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**12), st.lists(st.integers(-(10**12), 10**12), min_size=4, max_size=4)
        ),
        max_size=9,
    )
)
def test_what_is_shared_out_sums_to_the_wait(rows: list[tuple[int, list[int]]]) -> None:
    """Exactly; nothing is negative, and a cause that took no longer gets nothing."""
    rows = [(waited, excess) for waited, excess in rows if max(excess) > 0]
    waited, excess = (
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64).reshape(-1, 4),
    )
    found = shared_out(waited, excess)
    assert found.sum(axis=1).tolist() == waited.tolist()
    assert (found >= 0).all()
    assert not found[excess <= 0].any()


@dataclass
class LocalSgd:
    """Ranks that train alone, and average their models after every `every` steps: a model of them
    that knows why a rank is late."""

    work: list[list[tuple[int, int]]]
    """Of each rank and step: the time to decode a batch, and to compute, in nanoseconds."""
    every: int
    exchange: int
    collectives: int
    """Of each average."""

    def run(self) -> tuple[Trace, dict[int, Counter[str]]]:
        """The trace, and for each late rank the time that others waited for it: where a cause alone
        made it late, by that cause."""
        spans: list[dict[str, object]] = []
        truth: dict[int, Counter[str]] = {}

        def add(
            kind: str,
            start: int,
            end: int,
            rank: int,
            step: int,
            process: int | None = None,
            name: str | None = None,
        ) -> None:
            process = pid(rank) if process is None else process
            common = {"kind": kind, "rank": rank, "pid": process, "tid": process, "name": name}
            spans.append({**common, "start_ns": start, "end_ns": end, "batch": step, "step": step})

        now = [0] * len(self.work)
        began, spent = list(now), [Counter[str]() for _ in self.work]
        for step in range(len(self.work[0]) + 1):
            for rank, steps in enumerate(self.work):
                began[rank] = now[rank]
                if step:  # before the first one all ranks meet
                    decode, compute = steps[step - 1]
                    ready, done = now[rank] + decode, now[rank] + decode + compute
                    add("wait", now[rank], ready, rank, step)
                    for kind in ("fetch", "decode"):
                        add(kind, now[rank], ready, rank, step, pid(rank, 0))
                    add("compute", ready, done, rank, step)
                    spent[rank] += Counter(decode=decode, compute=compute)
                    now[rank] = done
            if step % self.every == 0:
                late = max(range(len(now)), key=lambda rank: (now[rank], -rank))
                for rank in range(len(now)):
                    if waited := now[late] - now[rank]:
                        more = {
                            cause: max(0, spent[late][cause] - spent[rank][cause])
                            for cause in ("decode", "compute")
                        }
                        decode = round(waited * more["decode"] / sum(more.values()))
                        truth.setdefault(late, Counter()).update(
                            decode=decode, compute=waited - decode
                        )
                last = now[late]
                for number in range(self.collectives):
                    until = last + self.exchange
                    for rank in range(len(now)):
                        add("comm", now[rank], until, rank, step, name=f"average {number}")
                        now[rank], spent[rank] = until, Counter()
                    last = until
            for rank in range(len(now)):
                add("step", began[rank], now[rank], rank, step)
        config = {
            "ranks": len(now),
            "workers": 1,
            "batch_size": 1,
            "device": "cpu",
            "loader": "files",
        }
        record = RunRecord.of({"config": config, "status": "complete"})
        return Trace(record, pl.DataFrame(spans, schema=table_schema(SPAN_COLUMNS))), truth


@given(st.data(), st.integers(2, 3), st.integers(1, 4), st.integers(1, 9), st.integers(1, 3))
@settings(deadline=None, max_examples=examples(50))
def test_ranks_that_average_every_n_steps(
    data: st.DataObject, ranks: int, every: int, exchange: int, collectives: int
) -> None:
    """What made a rank late is what the model of such a job knows, however long ago it was; here
    computing goes by CPU."""
    took = st.tuples(st.integers(0, 50), st.integers(1, 50))
    work = data.draw(
        st.lists(st.lists(took, min_size=8, max_size=8), min_size=ranks, max_size=ranks)
    )
    trace, truth = LocalSgd(work, every, exchange, collectives).run()
    found = charges(trace)
    expected = {
        rank: {cause: ns for cause, ns in causes.items() if ns} for rank, causes in truth.items()
    }
    assert {rank: sum(causes.values()) for rank, causes in expected.items()} == {
        rank: sum(causes.values()) for rank, causes in found.straggler_wait_ns.items()
    }
    for rank, causes in found.straggler_wait_ns.items():
        for cause in CAUSES:  # the two round halves of nanoseconds differently
            assert abs(causes.get(cause, 0) - expected[rank].get(cause, 0)) <= 8 * ranks
    assert {} == found.computed_meanwhile_ns


# ----------------------------------------------------------------------------------------- drawings


def test_a_rank_is_late_by_what_it_did_more_and_not_by_what_it_did_last() -> None:
    """Three steps after the ranks met: in the time in which rank 0 waits, rank 1 computes mostly,
    no longer than rank 0 had."""
    found = charges(timeline(LOCAL_SGD))
    assert {1: {"decode": 50}} == found.straggler_wait_ns
    assert {} == found.computed_meanwhile_ns
    summary = summarise(timeline(LOCAL_SGD, **FACTS))
    assert "decode" == summary.verdict.bound_by
    assert "on rank 1, which the others waited for" in summary.verdict.text


def test_where_it_is_not_known_when_ranks_met_it_counts_what_the_late_one_did() -> None:
    """The first collective of a job, or the first that is known."""
    lines = LOCAL_SGD.splitlines()
    drawing = "\n".join(
        line.replace(" 00", " ..", 1) if line.strip().startswith("comm") else line for line in lines
    )
    assert {1: {"compute": 40, "decode": 10}} == charges(timeline(drawing)).straggler_wait_ns


def test_a_collective_beside_a_computation_is_no_meeting() -> None:
    """Rank 0 is ahead after the first bucket as it was before: no rank waited for that one. Rank 1
    was late by its batch."""
    drawing = """
        step             00 11111111111
        wait             .. 1..........
        fetch w0         .. 1..........
        decode w0        .. #..........
        compute          .. .111111....
        comm name=first  .. ..11111....
        comm name=last   00 .......1111
        step r1          00 11111111111
        wait r1          .. 11111......
        fetch r1 w0      .. 11111......
        decode r1 w0     .. #####......
        compute r1       .. .....111111
        comm r1 name=first  .. ......1....
        comm r1 name=last   00 ..........1
    """
    assert {1: {"decode": 30}} == charges(timeline(drawing)).straggler_wait_ns


def test_leaving_the_last_meeting_later_is_exchange() -> None:
    """Rank 1 needed two instants more until it had received all."""
    drawing = """
        step        000000000
        comm        0....0000
        compute     .1111....
        step r1     000000000
        comm r1     000....00
        compute r1  ...1111..
    """.replace("comm        0....0000", "comm name=a 0........\ncomm name=b .....0000")
    drawing = drawing.replace(
        "comm r1     000....00", "comm r1 name=a 000......\ncomm r1 name=b .......00"
    )
    assert {1: {"exchange": 20}} == charges(timeline(drawing)).straggler_wait_ns


def test_ranks_are_not_compared_over_steps_in_which_the_device_was_not_recorded() -> None:
    """What they did there is not known."""
    window = {"host": "node1", "first_step": 3, "last_step": 4, "start_ns": 0, "end_ns": 10**9}
    gpu = {"windows": [{**window, "rank": rank, "pid": pid(rank)} for rank in (0, 1)]}
    found = charges(timeline(LOCAL_SGD, capture={"gpu": gpu}))
    assert {1: {"compute": 40, "decode": 10}} == found.straggler_wait_ns


@pytest.mark.parametrize(
    ("uncertainty_ns", "expected"),
    [
        (0, {"host": 10, "compute": 40, "decode": 10}),
        (10, {"host": 10, "exchange": 14, "decode": 36}),
    ],
)
def test_ranks_have_met_within_the_uncertainty_of_their_clocks(
    uncertainty_ns: int, expected: dict[str, int]
) -> None:
    """Rank 0 seems to have left an instant before rank 1 arrived. That rank 1 left later is
    `exchange`."""
    lines = [
        line.replace(" 00 ", " 000 ", 1).replace(" .. ", " ... ", 1)
        for line in LOCAL_SGD.splitlines()
    ]
    drawing = (
        "\n".join(lines)
        .replace("comm          000", "comm          0..")
        .replace("comm r1       000", "comm r1       ..0")
    )
    assert (
        expected
        == charges(timeline(drawing, clocks={"uncertainty_ns": uncertainty_ns})).straggler_wait_ns[
            1
        ]
    )


def test_a_rank_that_computed_more_was_not_delayed() -> None:
    """Each rank computed more in one step, and as much as the other in all: what else it did has
    delayed nobody."""
    drawing = """
        step         0 1111111111 2222222222
        wait         . 1......... 2.........
        fetch w0     . 1......... 2.........
        decode w0    . #......... #.........
        compute      . .111...... .22222222.
        comm         0 ....111111 .........2
        step r1      0 1111111111 2222222222
        wait r1      . 1......... 2.........
        fetch r1 w0  . 1......... 2.........
        decode r1 w0 . #......... #.........
        compute r1   . .11111111. .222......
        comm r1      0 .........1 ....222222
    """
    found = summarise(timeline(drawing, **FACTS))
    assert {"0": {"compute": 5e-8}, "1": {"compute": 5e-8}} == found.steps.straggler_wait_s
    assert "straggler" == found.verdict.bound_by
