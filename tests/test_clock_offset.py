"""Clock offsets between hosts, estimated from collectives: the error never exceeds the stated
uncertainty."""

from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kineto_files import document, event, launch, meta, write
from strategies import examples

from ioprof.clock import Anchor
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import table_schema
from ioprof.ingest.clocks.clock_alignment import ClockAlignment
from ioprof.ingest.clocks.clock_offset import (
    MOST_DRIFT_RATIO,
    SLACK_NS,
    Clock,
    OffsetEstimate,
    estimate_offset,
    synchronisation_points,
)
from ioprof.ingest.kineto import read_window

SECOND: Final = 1_000_000_000


def comm(*rows: tuple[int, int, int, int], name: str = "all_reduce") -> pl.DataFrame:
    """`comm` spans: rank, step, start and end."""
    found = [
        {"rank": rank, "step": step, "start_ns": start, "end_ns": end}
        for rank, step, start, end in rows
    ]
    columns = pl.DataFrame(
        found, schema={"rank": pl.Int32, "step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    )
    kind, named = (
        pl.lit(value).cast(table_schema(SPAN_COLUMNS)[key])
        for key, value in (("kind", "comm"), ("name", name))
    )
    whole = columns.with_columns(kind=kind, name=named)
    return whole.select(
        (pl.col(key) if key in whole.columns else pl.lit(None)).cast(dtype).alias(key)
        for key, dtype in SCHEMA.items()
    )


SCHEMA: Final = table_schema(SPAN_COLUMNS)


def estimate(first: pl.DataFrame, other: pl.DataFrame, **facts: Any) -> OffsetEstimate:
    clocks = (
        Clock("a", facts.get("anchor"), wall_error_ns=facts.get("error")),
        Clock("b", facts.get("its"), wall_error_ns=facts.get("error")),
    )
    return estimate_offset(
        clocks[0], synchronisation_points(first), clocks[1], synchronisation_points(other)
    )


@st.composite
def jobs(draw: st.DrawFn) -> tuple[pl.DataFrame, pl.DataFrame, Any]:
    """Collectives of two hosts with two ranks each, on either clock, and a function from the first
    clock to the other."""
    offset = draw(st.integers(-(10**15), 10**15))
    drift = draw(
        st.sampled_from([0.0, 1e-7, -3e-6, 5e-5])
        | st.floats(-0.9 * MOST_DRIFT_RATIO, 0.9 * MOST_DRIFT_RATIO)
    )
    begin = 10**13

    def other_of(time: int) -> int:
        """The other clock's reading at a time of the first."""
        return time - offset - round(drift * (time - begin))

    rows: tuple[list[Any], list[Any]] = [], []
    at = begin
    for step in range(draw(st.integers(1, 12))):
        at += draw(st.integers(1, 20 * SECOND))
        come = [at + draw(st.integers(0, SECOND)) for _ in range(4)]
        leave = [max(come) + draw(st.integers(0, SECOND // 10)) for _ in range(4)]
        for rank in range(4):
            read = other_of if rank >= 2 else int
            rows[rank >= 2].append((rank, step, read(come[rank]), read(leave[rank])))
    return comm(*rows[0]), comm(*rows[1]), other_of


@settings(max_examples=examples(60))
@given(jobs())
def test_the_truth_is_within_the_uncertainty(job: tuple[pl.DataFrame, pl.DataFrame, Any]) -> None:
    """For any offset and drift, and any late rank: from the first collective to the last."""
    first, other, other_of = job
    found = estimate(first, other)
    assert (True, len(first) // 2) == ("collectives" in found.method, found.collectives)
    assert found.uncertainty_ns is not None
    for time in (*first["start_ns"].to_list(), *first["end_ns"].to_list()):
        if is_within_collectives(other, other_of(time)):
            # times are whole nanoseconds
            assert abs(found.to_first(other_of(time)) - time) <= found.uncertainty_ns + 2
    assert found.uncertainty_ns >= SLACK_NS


def is_within_collectives(spans: pl.DataFrame, time: int) -> bool:
    """Whether a time lies between the first and the last collective of these spans."""
    points = synchronisation_points(spans)
    return bool(points["last_enter_ns"].min() <= time <= points["first_leave_ns"].max())  # type: ignore[operator]


@settings(max_examples=examples(60))
@given(jobs(), st.integers(-(10**12), 10**12))
def test_a_shift_of_either_clock_changes_nothing_but_the_offset(
    job: tuple[pl.DataFrame, pl.DataFrame, Any], shift: int
) -> None:
    """The offset changes by exactly the shift; uncertainty, method and drift stay the same."""
    first, other, _ = job
    later = other.with_columns(pl.col("start_ns", "end_ns") + shift)
    one, two = estimate(first, other), estimate(first, later)
    assert one.offset_ns == two.offset_ns + shift
    assert (one.uncertainty_ns, one.method, one.drift_ratio) == (
        two.uncertainty_ns,
        two.method,
        two.drift_ratio,
    )


@settings(max_examples=examples(60))
@given(jobs(), st.randoms())
def test_the_order_of_spans_changes_nothing(
    job: tuple[pl.DataFrame, pl.DataFrame, Any], random: Any
) -> None:
    """The spans are a set."""
    first, other, _ = job
    seed = random.randrange(1000)
    assert estimate(first, other) == estimate(
        first.sample(fraction=1, shuffle=True, seed=seed),
        other.sample(fraction=1, shuffle=True, seed=seed),
    )


def test_more_collectives_never_know_less() -> None:
    """Each collective adds a bound: one of 1 µs leaves 1 µs plus the slack; five leave little room
    for drift."""
    spans = [(0, step, step * SECOND, step * SECOND + 1_000) for step in range(5)]
    others = [(1, step, start + 7, end + 7) for _, step, start, end in spans]
    few, many = (estimate(comm(*spans[:count]), comm(*others[:count])) for count in (1, 5))
    assert many.uncertainty_ns is not None
    assert few.uncertainty_ns is not None
    assert few.uncertainty_ns <= SLACK_NS + 1_002
    # at the ends a line that is tilted within the strip
    assert many.uncertainty_ns <= 2 * (SLACK_NS + 1_002)
    assert (0.0, True) == (many.drift_ratio, abs(many.offset_ns + 7) <= SLACK_NS + 1_000)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("all_reduce", True), ("all_reduce 2", True), ("all_gather_into_tensor", True), ("reduce_scatter", True), ("barrier", True),  # noqa: E501
        ("monitored_barrier", True), ("gradients", True), ("AllReduce 0", True), ("ReduceScatter 11", True),  # noqa: E501
        ("broadcast", False), ("reduce", False), ("gather_object", False), ("scatter", False), ("all_to_all", False),  # noqa: E501
        ("all_reduce in group 3", False), ("AllReduce in group 2 0", False), ("SendRecv 0", False), ("Broadcast 1", False),  # noqa: E501
        ("my_all_reduce", False), ("Generic 0", False),
    ],
)  # fmt: skip
def test_only_collectives_that_synchronise_all_ranks_count(name: str, counts: bool) -> None:
    """The root of a broadcast may leave before the others enter; other groups enter at any time."""
    assert counts == bool(len(synchronisation_points(comm((0, 1, 5, 9), name=name))))


def test_what_a_rank_did_twice_under_one_name_is_left_out() -> None:
    """It cannot be matched with the collective of the other host."""
    once, twice = (0, 1, 5, 9), [(0, 2, 20, 30), (0, 2, 40, 50)]
    assert [(1, 5, 9)] == synchronisation_points(comm(once, *twice, (1, 2, 22, 33))).select(
        "step", "last_enter_ns", "first_leave_ns"
    ).rows()


def test_steps_and_ranks_that_are_not_known_are_left_out() -> None:
    """They cannot be matched across ranks."""
    spans = comm((0, 1, 5, 9), (0, 2, 6, 9)).with_columns(
        step=pl.when(pl.col("step") == 1).then(None).otherwise(pl.col("step"))
    )
    assert [2] == synchronisation_points(spans)["step"].to_list()


# -------------------------------------------------------------------------------------- wall clocks

ONE: Final = Anchor(90, 10**18, 110)
TWO: Final = Anchor(5_000_000_090, 10**18, 5_000_000_110)
NONE: Final = comm()


@pytest.mark.parametrize(("error", "bound"), [(1_000_000, 2_000_020), (0, 20), (None, None)])
def test_without_collectives_the_wall_clocks_are_used(error: int | None, bound: int | None) -> None:
    """Within the error that their daemons report plus that of the readings; unbounded, and reported
    so, if unsynchronised."""
    found = estimate(NONE, NONE, anchor=ONE, its=TWO, error=error)
    assert (-5 * SECOND, bound) == (found.offset_ns, found.uncertainty_ns)
    assert ("not synchronised" in found.method) == (error is None)


def test_without_anchors_and_collectives_the_offset_is_unknown() -> None:
    """The times stay unchanged and the uncertainty is unbounded."""
    assert (0, None, "nothing") == (
        lambda found: (found.offset_ns, found.uncertainty_ns, found.method)
    )(estimate(NONE, NONE))


def test_synchronised_wall_clocks_narrow_the_strip() -> None:
    """Long collectives give wide bounds; wall clocks with an error of 1 µs bound the offset to
    about 1 µs."""
    wide, others = comm((0, 1, 0, SECOND)), comm((1, 1, 5 * SECOND, 6 * SECOND))
    alone, kept = (
        estimate(wide, others, anchor=ONE, its=TWO, error=error) for error in (None, 1_000)
    )
    assert alone.uncertainty_ns is not None
    assert alone.uncertainty_ns >= SECOND
    assert kept.uncertainty_ns is not None
    assert kept.uncertainty_ns <= 2_030
    assert abs(kept.offset_ns + 5 * SECOND) <= 2_030


def test_wall_clocks_that_contradict_the_collectives_are_ignored() -> None:
    """The daemon was wrong by a second: no rank leaves an all-reduce before the last has
    entered."""
    found = estimate(
        comm((0, 1, 0, 1000)),
        comm((1, 1, 6 * SECOND, 6 * SECOND + 1000)),
        anchor=ONE,
        its=TWO,
        error=1_000,
    )
    assert abs(found.offset_ns + 6 * SECOND) <= SLACK_NS + 1000
    assert "contradict" in found.method


def test_collectives_that_contradict_each_other_bound_nothing() -> None:
    """They were matched wrongly or a clock was set: the wall clocks remain, and the method says
    why."""
    first, other = (
        comm((0, 1, 0, 10), (0, 2, SECOND, SECOND + 10)),
        comm((1, 1, 0, 10), (1, 2, 9 * SECOND, 9 * SECOND + 10)),
    )
    found = estimate(first, other, anchor=ONE, its=TWO)
    assert (-5 * SECOND, None, 2) == (found.offset_ns, found.uncertainty_ns, found.collectives)
    assert "contradict each other" in found.method


# --------------------------------------------------------------------------------------- one kernel


@pytest.mark.parametrize(("kernel", "exact"), [("boot", True), ("other", False), (None, False)])
def test_one_kernel_is_one_clock(kernel: str | None, exact: bool) -> None:
    """Two containers of one host read the same clock, except for the shift of a time namespace: the
    offset is exact."""
    first = Clock("a", Anchor(90, 10**18, 110), "boot", shift_ns=5)
    other = Clock("b", Anchor(90 + 700, 10**18, 110 + 700), kernel, shift_ns=705)
    found = estimate_offset(
        first, synchronisation_points(NONE), other, synchronisation_points(NONE)
    )
    assert (-700, 0 if exact else None) == (found.offset_ns, found.uncertainty_ns)


def test_a_cloned_machine_is_another() -> None:
    """A virtual machine started twice from one memory image has one boot id and two clocks; the
    wall clock offsets differ."""
    first, other = Clock("a", ONE, "boot"), Clock("b", TWO, "boot")
    assert (
        estimate_offset(
            first, synchronisation_points(NONE), other, synchronisation_points(NONE)
        ).uncertainty_ns
        is None
    )


# ----------------------------------------------------------------------------------- several clocks


def test_uncertainties_of_several_clocks_add_up() -> None:
    """Any two clocks are related through the first; one unknown uncertainty makes the total
    unknown."""
    spans = {"a": comm((0, 1, 0, 1000)), "b": comm((1, 1, 50, 2050)), "c": comm((2, 1, 0, 4000))}
    alignment = ClockAlignment([Clock(name) for name in spans], spans.items())
    bounds = [alignment.estimate(name).uncertainty_ns or 0 for name in "bc"]
    assert alignment.facts().uncertainty_ns == sum(bounds)
    unknown = ClockAlignment([Clock(name) for name in (*spans, "d")], spans.items())
    assert unknown.facts().uncertainty_ns is None
    assert ["b", "c", "d"] == [entry.clock for entry in unknown.facts().ties]


@settings(max_examples=examples(60))
@given(jobs())
@example((comm((0, 1, 0, 10)), comm((1, 1, 0, 10)), None))
def test_spans_stay_spans(job: tuple[pl.DataFrame, pl.DataFrame, Any]) -> None:
    """After alignment no span ends before it starts, the earliest starts at 0, and single times are
    converted like spans."""
    first, other, _ = job
    alignment = ClockAlignment([Clock("a"), Clock("b")], [("a", first), ("b", other)])
    moved = [alignment.align("a", first), alignment.align("b", other)]
    assert 0 == min(table["start_ns"].min() for table in moved)  # type: ignore[type-var]
    assert all((table["start_ns"] <= table["end_ns"]).all() for table in moved)
    assert [alignment.align_time("b", time) for time in other["start_ns"].to_list()] == moved[1][
        "start_ns"
    ].to_list()


def test_collectives_of_a_group_on_the_gpu_have_its_name(tmp_path: Path) -> None:
    """Each group numbers its own collectives; they do not contribute to clock offsets."""
    nccl, ms, start = (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
        1_000_000,
        9_000_000_000,
    )
    events = []
    for number, group in enumerate(("0", "0", "1", "default_pg", "1", None), 1):
        named = {} if group is None else {"Process_Group_Name": group}
        events += [
            launch(start + number * ms, number),
            event("kernel", nccl, start + number * ms + 5, 9, correlation=number, **named),
        ]
    window = read_window(
        *write(tmp_path, document(*events), meta([(6, start), (7, start + 20 * ms)]))
    )
    names = window.spans.sort("start_ns")["name"].cast(pl.String).to_list()
    assert [
        "AllReduce 0",
        "AllReduce 1",
        "AllReduce in group 1 0",
        "AllReduce 2",
        "AllReduce in group 1 1",
        "AllReduce 3",
    ] == names
    assert 4 == len(synchronisation_points(window.spans.with_columns(rank=pl.lit(0, pl.Int32))))
