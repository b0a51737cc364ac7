"""Advice that names a line of code promises no more than what its function takes; what else is said
of code, and of who does it."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_simulator import Pipeline
from simulated_loader import Job, simulate
from timeline import timeline

from ioprof.analysis.answer.advice import advice_for
from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.answer.queue_advice import waiting_workers
from ioprof.analysis.ceilings import ceilings
from ioprof.analysis.charge.blame import charges
from ioprof.analysis.cpu.code_lines import line_text
from ioprof.analysis.cpu.stacks import WORKERS
from ioprof.analysis.reads.demand import Fetched
from ioprof.analysis.summary import _unexplained_ratio, summarise
from ioprof.format.run_record import (
    CauseShare,
    Ceilings,
    CodeShare,
    ConfigRecord,
    CpuEvidence,
    Finding,
    JobChange,
    JobKind,
    RunRecord,
)
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.model.advice import LEAST_AT_ALL, ranked
from ioprof.model.choices import with_choices
from ioprof.model.pipeline import OWN, STAGES, Op, Program
from ioprof.model.recorded import pipeline

MS = 1_000_000


def evidence(
    *code: CodeShare, causes: tuple[CauseShare, ...] = (CauseShare("host", 10.0, 0.5, "derived"),)
) -> Evidence:
    """Of a job with these lines, half of whose time is `host`."""
    summary = summarise(timeline("step 00001111\ncompute 00..11.."))
    steps = summary.steps.replace(causes=causes)
    return Evidence(
        RunRecord(), steps, summary.storage, summary.demand, {}, Fetched(), {}, {}, code=code
    )


def line(
    number: int,
    seconds: float,
    function: str = "main",
    cause: str = "host",
    library: str | None = None,
) -> CodeShare:
    """A line of train.py."""
    return CodeShare(cause, "train.py", number, function, 10, seconds, seconds / 20, 0.1, library)


@given(st.floats(0.0, 1.0), st.integers(1, 50), st.integers(1, 50))
def test_a_part_of_a_cause_brings_no_more_than_that_part(
    part: float, host: int, compute: int
) -> None:
    """In a loop that never waits, exactly that."""
    own = tuple({"host": host * MS, "compute": compute * MS} for _ in range(30))
    recorded = pipeline(
        simulate(Job(2, 2, tuple({"decode": MS // 100} for _ in range(30)), own)).trace
    )
    found = (Finding("whole", cause="host"), Finding("line", cause="host", part=part))
    told = ranked(found, recorded, 0.0, JobKind.TORCH, proposes=False)
    speedups = {each.code: each.gain for each in told}
    if speedups["whole"] is None:  # what took most of the time stays, without a number
        assert (host + compute) / compute < LEAST_AT_ALL * 1.05
        return
    assert None not in speedups.values()
    expected = (host + compute) / ((1 - part) * host + compute)
    if "line" not in speedups:  # what brings next to nothing is no advice
        assert expected < LEAST_AT_ALL * 1.05
        return
    assert speedups["line"] == pytest.approx(expected, rel=0.05)
    assert LEAST_AT_ALL <= speedups["line"] <= speedups["whole"] * (1 + 1e-9)
    assert all(each.is_bound for each in told)


def test_the_range_has_the_error_of_the_samples() -> None:
    """Exactly what the part may be, where nothing else varies; it is never beyond the whole
    cause."""
    own = tuple({"host": 8 * MS, "compute": 2 * MS} for _ in range(30))
    recorded = pipeline(
        simulate(Job(2, 2, tuple({"decode": MS // 100} for _ in range(30)), own)).trace
    )

    def told(part_error: float | None) -> Finding:
        found = (Finding("line", cause="host", part=0.5, part_error=part_error),)
        return ranked(found, recorded, 0.0, JobKind.TORCH, proposes=False)[0]

    exact, sampled, unknown = told(None), told(0.25), told(0.9)
    assert exact.gain == sampled.gain == pytest.approx(10 / 6, rel=0.05)
    assert sampled.low == pytest.approx(min(exact.low or 0, 10 / 8), rel=0.05)
    assert sampled.high == pytest.approx(max(exact.high or 0, 10 / 4), rel=0.05)
    assert unknown.high == pytest.approx(10 / 2, rel=0.05)


def test_a_line_of_another_thread_is_no_waiting() -> None:
    """The loop waits, and the line may compute all the time."""
    mine, other = (line(3, 4.0).replace(waits=1.0, others=others) for others in (0.0, 1.0))
    facts = [evidence(each).line_facts(each) for each in (mine, other)]
    assert [(1.0, None), (None, True)] == [(f["line_waits"], f["awaited"]) for f in facts]


def test_the_part_is_that_of_the_function() -> None:
    """With all its lines and comprehensions, and two standard errors of a proportion of the cause's
    samples."""
    first, second, other = (
        line(3, 3.0),
        line(5, 2.0, "main.<locals>.<listcomp>.<genexpr>"),  # as CPython 3.11 names it
        line(9, 1.0, "other"),
    )
    known = evidence(first, second, other)
    part, error = known.part_of_cause("host", first)  # 20 samples are 5 s of 10, so there were 40
    assert (part, error) == pytest.approx((0.5, 2 * (0.25 / 40 + 0.25 / 40**2) ** 0.5))
    assert known.part_of_cause("host", other)[0] == pytest.approx(0.1)
    facts = known.line_facts(first)
    assert ("main", 0.25) == (facts["function"], facts["function_share"])
    assert "function" not in known.line_facts(other)


def test_functions_that_take_as_much_are_named_together() -> None:
    """Besides the largest; none of a tenth of the steps' time or less, and the largest ones where
    none is large by itself."""
    functions = [line(3, 4.0), line(5, 3.0, "other"), line(7, 2.5, "third"), line(9, 0.2, "least")]
    found = evidence(*functions).largest_part("host")
    assert ("train.py:3 in main", 0.2) == (found["line"], found["line_share"])
    others = [("train.py:5 in other", 0.15), ("train.py:7 in third", 0.125)]
    assert others == [(each["line"], each["share"]) for each in found["others"]]
    found = evidence(line(3, 8.0), line(5, 2.1, "other")).largest_part("host")
    assert ("train.py:3 in main", 0.4, []) == (found["line"], found["line_share"], found["others"])
    small = [line(number, 2.2, name) for number, name in enumerate("abcd", 1)]
    assert [line(number, 2.2, name) for number, name in enumerate("abc", 1)] == evidence(
        *small
    ).further_functions("host", None)
    for lines, numbers in ((functions, (3, 5, 7)), (small, (1, 2, 3))):
        told = advice_for(evidence(*lines), "host", is_own=False)
        assert [f"train.py:{number}" for number in numbers] == [
            each.facts["line"].split()[0] for each in told
        ]


def test_functions_of_a_group_are_no_findings_of_their_own() -> None:
    """A function is told once, with what it calls; beside it what is not part of it."""
    encode = [line(n, 1.5, name).replace(group="encode (t.py)") for n, name in enumerate("abc", 1)]
    alone = line(9, 2.0, "log")
    known = evidence(*encode, alone)
    largest = known.largest_line("host")
    assert largest is not None
    assert ("t.py in encode with its callees", 4.5) == (line_text(largest), largest.seconds)
    assert [alone] == known.further_functions("host", largest)
    assert pytest.approx(0.45) == known.part_of_cause("host", largest)[0]
    few = evidence(*encode, line(9, 5.0, "log"))
    assert [(alone.replace(seconds=5.0, share=0.25), "encode")] == [
        (few.largest_line("host"), each.function)
        for each in few.further_functions("host", few.largest_line("host"))
    ]


def test_each_line_of_workers_is_told_with_what_it_waits() -> None:
    """Where no stage names what workers do, the lines of all that they do are."""
    known = evidence(
        line(3, 6.0, "ask", WORKERS).replace(waits=1.0),
        line(5, 3.0, "parse", WORKERS).replace(waits=0.0),
        line(7, 0.9, "least", WORKERS),
        causes=(CauseShare("loader", 10.0, 0.5, "derived", workers_share=0.99),),
    )
    busy = Ceilings(0.1, 0.1, 0.02, workers=2, is_serial=False, predicted_s=0.1, residual_s=0.0)
    known = replace(known, making_ns={"loader": 10 * MS}, ceilings=busy)
    told = [each for each in advice_for(known, "loader", is_own=False) if each.part]
    assert [("train.py:3 in ask", 1.0, 6.0 / 9.9), ("train.py:5 in parse", 0.0, 3.0 / 9.9)] == [
        (each.facts["line"], each.waits, pytest.approx(each.part)) for each in told
    ]
    assert [1.0, None] == [each.facts.get("line_waits") for each in told]
    small = [line(number, 2.0, name, WORKERS) for number, name in enumerate("abcdefg", 1)]
    told = advice_for(replace(known, code=tuple(small)), "loader", is_own=False)
    assert 3 == sum(each.code == "loader_line" for each in told)  # none is large by itself


def test_lines_that_call_libraries_are_not_the_jobs_own_python() -> None:
    """Of 10 s, 6 are its own."""
    known = evidence(line(3, 6.0), line(4, 3.0, library="stack (numpy/core.py)"))
    assert 0.6 == pytest.approx(known.own_ratio("host"))


def test_what_a_line_names_is_explained() -> None:
    """So it is no time of which nothing says what it was."""
    found = charges(timeline("step 0000000000\ncompute 00000....."))  # 50 ns of `host` in 100
    assert 0.5 == pytest.approx(_unexplained_ratio(found, []))
    assert 0.2 == pytest.approx(
        _unexplained_ratio(found, [line(3, 3e-8), line(4, 1e-8, cause="transform")])
    )
    assert 0.0 == pytest.approx(_unexplained_ratio(found, [line(3, 9e-8)]))


@pytest.mark.parametrize(("waiting", "is_advised"), [(0.0, True), (0.1, True), (0.5, False)])
def test_workers_that_wait_for_a_core_get_no_more_beside_them(
    waiting: float, is_advised: bool
) -> None:
    """They use 0.3 cores each: what they wait for otherwise decides."""
    known = replace(
        evidence(causes=(CauseShare("loader", 10.0, 0.5, "measured"),)),
        run=RunRecord(config=ConfigRecord(workers=2, ranks=1)),
        cpu=CpuEvidence(cores=8, worker_running_threads=0.3, worker_waiting_threads=waiting),
        ceilings=Ceilings(
            0.1, 0.1, 0.02, workers=2, is_serial=False, predicted_s=0.1, residual_s=0.0
        ),
    )
    assert is_advised == (waiting_workers(known, "") is not None)


def test_batches_that_the_rank_makes_itself_are_no_workers_of_the_loader() -> None:
    """It validates without workers; two workers make what it trains on."""
    trace = Pipeline([20 * MS] * 60, [15 * MS] * 60, 2).trace()
    steps = trace.spans.filter(pl.col("kind") == "step").sort("start_ns")[20:40:2]
    own = steps.with_columns(
        start_ns=pl.col("end_ns") - 3 * MS,
        end_ns=pl.col("end_ns") - 2 * MS,
        batch=pl.col("batch") + 1000,
        kind=pl.lit("fetch"),
    )
    kinds = trace.spans.schema["kind"]
    more = [own.with_columns(kind=pl.lit(kind, dtype=kinds)) for kind in ("fetch", "wait")]
    found = ceilings(
        Trace(
            trace.run,
            pl.concat([trace.spans, *(each.select(trace.spans.columns) for each in more)]),
        )
    )
    plain = ceilings(trace)
    assert found is not None
    assert plain is not None
    assert (2, plain.supply_s) == (found.workers, pytest.approx(found.supply_s, rel=0.01))


def test_a_loader_change_that_brings_nothing_is_no_advice() -> None:
    """The replay says so; what cannot be replayed stays."""
    stages = tuple({"decode": 40 * MS} for _ in range(60))
    recorded = pipeline(
        simulate(Job(1, 2, stages, tuple({"compute": 10 * MS} for _ in range(60)))).trace
    )
    found = (Finding("prefetch", change=JobChange(prefetch=8)), Finding("decode", cause="decode"))
    told = ranked(found, recorded, 0.0, JobKind.TORCH, proposes=False)
    assert ["decode"] == [each.code for each in told]


def test_what_a_loop_spends_on_choosing_samples_is_time_of_its_loader() -> None:
    """And no delivery: of a wait in which the loop chooses for 4 ms, fetches for 2 and takes 2 ms
    more."""
    rows = []
    for batch in range(24):
        begin = batch * 10 * MS
        times = {"wait": (0, 8), "sampler": (1, 5), "fetch": (5, 7), "compute": (8, 10)}
        for kind, (first, last) in times.items():
            rows.append(
                {
                    "kind": kind,
                    "start_ns": begin + first * MS,
                    "end_ns": begin + last * MS,
                    "batch": batch,
                }
            )
        rows.append(
            {
                "kind": "step",
                "start_ns": begin,
                "end_ns": begin + 10 * MS,
                "batch": None,
                "step": batch,
            }
        )
    spans = [{"rank": 0, "pid": 1, "tid": 1, "host": "node1", **row} for row in rows]
    trace = Trace(
        RunRecord.of({"status": "complete"}), pl.DataFrame(spans, schema=table_schema(SPAN_COLUMNS))
    )
    (rank,) = pipeline(trace).ranks
    (each,) = rank.iterations
    made_s = each.tasks.stages_s[:, STAGES.index("loader")]
    assert (6.0, 2.0) == pytest.approx((1e3 * made_s.mean(), 1e3 * each.tasks.take_s.mean()))


def test_choosing_an_epoch_stays_if_workers_are_kept() -> None:
    """A start of 3 s, in which the sampler is asked twice for a second: kept workers ask it
    once."""
    begin, second = 5 * 10**9, 10**9
    waits = pl.DataFrame(
        {
            "start_ns": [begin, begin + 3 * second],
            "end_ns": [begin + 3 * second, begin + 4 * second],
        }
    )
    spans = pl.DataFrame(
        {
            "kind": ["sampler", "sampler", "sampler"],
            "start_ns": [begin, begin + 3 * second // 2, begin + 3 * second],
            "end_ns": [begin + second, begin + 5 * second // 2, begin + 4 * second],
            "batch": pl.Series([None, None, 7], dtype=pl.Int64),
        }
    )
    none = np.zeros(2)
    program = Program(
        (Op.START, Op.TAKE),
        (0, 0),
        np.array([3.0, 0.0]),
        np.zeros((2, len(OWN))),
        none,
        none,
        none,
        none,
        none,
        none,
        none,
        np.zeros(2, np.bool_),
        np.ones(2),
        none,
        np.zeros((2, len(OWN))),
    )
    found = with_choices(program, waits, spans)
    assert [2.0, 0.0] == found.spent_s.tolist()
    assert [1.0, 0.0] == found.after_s[:, OWN.index("loader")].tolist()
    assert found.after_s.sum() == 1.0
