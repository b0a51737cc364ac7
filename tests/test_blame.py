"""What a step's time is charged to: the laws over made-up jobs, and one drawing for each cause."""

from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from oracle import Oracle
from strategies import examples, shifted, shuffled, split, traces
from timeline import charged, details, timeline

from ioprof.analysis.charge.blame import blame, charges, exposed
from ioprof.analysis.charge.unmeasured import unmeasured
from ioprof.analysis.intervals import charge, total
from ioprof.analysis.reads.lineage import COLUMNS as OF_WAITS
from ioprof.analysis.reads.lineage import KINDS, LEAVES, wait_leaves
from ioprof.analysis.selection import by_rank, intervals, of_kind
from ioprof.format.run_record import Reason, RunRecord
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace

JOBS = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
COLUMNS = [f"{cause}_ns" for cause in CAUSES]


CHAIN = """
    step r0        00
    comm r0 name=a 00
    step r1        00
    comm r1 name=a .0
    comm r1 name=b 00
    step r2        00
    comm r2 name=b .0
    compute r2     0.
"""


# --------------------------------------------------------------------------------------------- laws


@JOBS
@given(traces())
def test_causes_sum_to_the_step(trace: Trace) -> None:
    """Law 1: for every rank and step, exactly."""
    steps = blame(trace)
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == steps.select(
        pl.sum_horizontal(COLUMNS)
    ).to_series().to_list()
    assert ["rank", "step", "start_ns", "end_ns", *COLUMNS] == steps.columns
    assert all(
        steps[column].dtype == pl.Int64 and (steps[column].drop_nulls() >= 0).all()
        for column in COLUMNS
    )


@JOBS
@given(traces())
def test_leaves_sum_to_the_wait(trace: Trace) -> None:
    """Law 2: for every wait, exactly."""
    for _, spans in by_rank(trace, KINDS, OF_WAITS):
        waits = intervals(of_kind(spans, "wait"))
        leaves = [activity.times for activity in wait_leaves(spans)]
        assert not charge(waits, leaves)[:, -1].any()


@JOBS
@given(traces())
def test_blame_agrees_with_the_oracle(trace: Trace) -> None:
    """Each instant is charged as the plain rules say."""
    missing = set(unmeasured(trace))
    expected = Oracle(trace, missing).blame()
    for row in blame(trace).iter_rows(named=True):
        counts = expected.pop((row["rank"], row["step"]))
        assert {cause: None if cause in missing else counts[cause] for cause in CAUSES} == {
            c: row[f"{c}_ns"] for c in CAUSES
        }
    assert {} == {key: counts for key, counts in expected.items() if counts}


def test_steps_of_which_nothing_else_is_known_are_the_hosts() -> None:
    """A rank that recorded nothing but its steps, beside one that did."""
    found = blame(timeline("step 0011\nstep r1 0011\nwait r1 00"))
    assert [20, 20] == found.filter(rank=0)["host_ns"].to_list()
    assert [0, 20] == found.filter(rank=1)["host_ns"].to_list()


@JOBS
@given(traces(max_ranks=3), st.data())
def test_order_shift_and_splits_change_nothing(trace: Trace, data: st.DataObject) -> None:
    """Law 6: of the rows, of the clock's zero, of where a span is cut."""
    expected = charges(trace)
    by_ns = data.draw(st.integers(0, 10**15))
    for other, moved_ns in (
        (data.draw(shuffled(data.draw(split(trace)))), 0),
        (shifted(trace, by_ns), by_ns),
    ):
        found = charges(other)
        assert found.steps.with_columns(pl.col("start_ns", "end_ns") - moved_ns).equals(
            expected.steps
        )
        assert expected.straggler_wait_ns == found.straggler_wait_ns
        assert (expected.own_ns, expected.derived_ns) == (found.own_ns, found.derived_ns)
        for cause in CAUSES:
            assert expected.details.of_cause(cause, 10, trace) == found.details.of_cause(
                cause, 10, trace
            )


@JOBS
@given(traces(max_ranks=3))
@example(timeline(CHAIN))
@example(timeline(CHAIN + "step r0 1."))
def test_waiting_for_peers_is_followed_to_the_late_rank(trace: Trace) -> None:
    """As the plain rules say; it is all that was charged to `straggler`. An instant of two steps (a
    damaged record) counts once."""
    found = charges(trace)
    assert Oracle(trace, set(unmeasured(trace))).straggler_wait_ns() == found.straggler_wait_ns
    behind = sum(
        waited for causes in found.straggler_wait_ns.values() for waited in causes.values()
    )
    assert behind == sum(
        total(instants["straggler"]) for instants in exposed(trace, ["straggler"]).values()
    )
    of_ranks = found.steps.partition_by("rank")
    if all(
        total(steps.select("start_ns", "end_ns")) == (steps["end_ns"] - steps["start_ns"]).sum()
        for steps in of_ranks
    ):
        assert behind == int(found.steps["straggler_ns"].sum())


# ----------------------------------------------------------------------- one drawing for each cause


def test_a_cold_read_is_storage() -> None:
    """The wait while the batch's worker reads from storage; once it is made, delivery; before it
    began, the loader."""
    trace = timeline("""
        step       000000000000
        wait       .0000000000.
        fetch w0   ..0000000...
        open w0    ..#.........
        read w0    ...##.......
        read w0 cache   .....#......
        decode w0  ......#.....
        transform w0   .......#....
        collate w0 ........#...
        compute    ...........0
        """)
    leaves = {
        "storage": 3,
        "page_cache": 1,
        "decode": 1,
        "transform": 1,
        "collate": 1,
        "delivery": 2,
        "loader": 1,
    }
    assert {(0, 0): {"compute": 1, "h2d": None, **leaves, "host": 1}} == charged(blame(trace))


def test_what_compute_covers_is_hidden() -> None:
    """A wait, a copy and an exchange under compute cost nothing."""
    trace = timeline("""
        step      00000000
        wait      .0000...
        fetch w0  00000...
        read w0   #####...
        h2d       .....00.
        comm      ......00
        compute   ..000000
        """)
    assert {(0, 0): {"compute": 6, "storage": 1, "host": 1}} == charged(blame(trace))


def test_a_worker_busy_with_an_earlier_batch_is_charged_with_that() -> None:
    """Batch 2 was asked for while its worker still made batch 1."""
    trace = timeline("""
        step        222222222
        wait        222222222
        fetch w0    11112222.
        decode w0   ##.......
        collate w0  ...1...2.
        read w0     ....##...
        fetch w1    ##########
        transform w1  #########
        compute     .........2
        """)
    leaves = {"storage": 2, "decode": 2, "collate": 2, "delivery": 1, "loader": 2}
    assert {(0, 2): {"h2d": None, **leaves}} == charged(blame(trace))


def test_a_killed_workers_batch_is_the_loaders() -> None:
    """Its last fetch never ended, so it was not recorded, and nothing is known of batch 1."""
    trace = timeline("""
        step      0000011111
        wait      000..1111.
        fetch w0  00........
        read w0   ##........
        fetch w1  ..........
        read w1   ##........
        compute   ...00....1
        """)
    expected = {
        (0, 0): {"compute": 2, "h2d": None, "storage": 2, "delivery": 1},
        (0, 1): {"compute": 1, "h2d": None, "loader": 4},
    }
    assert expected == charged(blame(trace))


def test_of_two_workers_that_made_a_batch_the_first_delivered_it() -> None:
    """A damaged record may show two; the later one held nobody up."""
    trace = timeline(
        "step 0000\nwait 0000\nfetch w0 .000\nfetch w1 00..\ndecode w1 ##..\ncompute ....0"
    )
    assert {(0, 0): {"h2d": None, "decode": 2, "delivery": 2}} == charged(blame(trace))


def test_without_workers_the_rank_loads_its_own_batches() -> None:
    """The same leaves, in the rank's main thread; reads of other threads there are not the
    wait's."""
    trace = timeline(
        """
        step          0000000000
        wait          .0000000..
        fetch         ..00000...
        read          ..##......
        decode        ....##....
        compute main  ........00
        """,
        config={"device": "cpu"},
    )
    elsewhere = timeline("read ######").spans.with_columns(tid=pl.lit(99, pl.Int32))
    trace = Trace(trace.run, pl.concat([trace.spans, elsewhere]))
    expected = {"compute": 2, "storage": 2, "decode": 2, "delivery": 1, "loader": 2, "host": 1}
    assert {(0, 0): expected} == charged(blame(trace))


def test_a_worker_may_read_in_threads_of_its_own() -> None:
    """All threads of a worker process work on its batch."""
    trace = timeline("step 0000\nwait 0000\nfetch w0 000.\nread w0 ##..\ncompute ....0")
    read = pl.col("kind") == "read"
    threaded = trace.spans.with_columns(
        tid=pl.when(read).then(4242).otherwise(pl.col("tid")).cast(pl.Int32)
    )
    assert charged(blame(trace)) == charged(blame(Trace(trace.run, threaded)))


def test_a_copy_that_nothing_hides_is_h2d() -> None:
    """It stands before the wait that it overlaps: the copy of one batch, while the next is waited
    for."""
    trace = timeline("step 000000\nwait ..0000\nfetch w0 ....00\nh2d .000..\ncompute .....0")
    assert {(0, 0): {"compute": 1, "h2d": 3, "loader": 1, "host": 1}} == charged(blame(trace))


def test_the_exchange_is_split_at_the_last_arrival() -> None:
    """Rank 0 waits for rank 1 until 5, and from then on both exchange."""
    trace = timeline("""
        step        00000000
        compute     000.....
        comm        ...00000
        step r1     00000000
        wait r1     00......
        fetch r1 w0 00......
        read r1 w0  ##......
        compute r1  ..000...
        comm r1     .....000
        """)
    found = charges(trace)
    expected = {
        (0, 0): {"compute": 3, "exchange": 3, "straggler": 2, "h2d": None},
        (1, 0): {"compute": 3, "exchange": 3, "h2d": None, "storage": 2},
    }
    assert expected == charged(found.steps)
    assert {1: {"compute": 20}} == found.straggler_wait_ns


def test_waiting_for_peers_stands_behind_the_own_wait() -> None:
    """While its own next batch is missing, a rank would stand still even if its peers were there; a
    transfer stands before it."""
    trace = timeline("""
        step         00000000
        comm         .000000.
        wait         ..0000..
        fetch w0     ..000...
        read w0      ..###...
        step r1      00000000
        wait r1      0000....
        fetch w0 r1  0000....
        decode w0 r1 ####....
        comm r1      ....000.
        """)
    found = charges(trace)
    rank_0 = {"compute": None, "exchange": 3, "straggler": 1, "h2d": None, "storage": 2, "host": 2}
    assert rank_0 == charged(found.steps)[0, 0]
    assert {1: {"decode": 10}} == found.straggler_wait_ns


def test_of_two_ranks_equally_late_the_lower_is_named() -> None:
    """Whatever the order of the rows."""
    late = "step r{0} 0000\ncomm r{0} ...0\n{1} r{0} 000.\n"
    drawing = (
        "step 0000\ncomm 0000\nwait 0...\nfetch w0 0...\n"
        + late.format(2, "compute")
        + late.format(1, "h2d")
    )
    assert {1: {"h2d": 20}} == charges(timeline(drawing)).straggler_wait_ns


def test_of_a_chain_of_ranks_that_wait_the_last_is_named() -> None:
    """Rank 0 waits for rank 1, which waits for rank 2 in another collective: what rank 2 did
    explains both."""
    found = charges(timeline(CHAIN))
    assert {2: {"compute": 20}} == found.straggler_wait_ns
    assert [10, 10, 0] == found.steps["straggler_ns"].to_list()


def test_a_late_rank_may_wait_outside_of_its_steps() -> None:
    """Its own time is not charged then; what rank 2 did explains that of rank 0 all the same."""
    trace = timeline(CHAIN.replace("step r1        00", "step r1        .0"))
    assert {2: {"compute": 10}} == charges(trace).straggler_wait_ns


@pytest.mark.parametrize("others", ["", "\nstep r3 00\ncompute r3 00"])
def test_of_ranks_that_wait_for_each_other_the_one_waited_for_is_named(others: str) -> None:
    """Ranks 0 and 1 wait for each other, and rank 2 for rank 1; a rank that takes no part changes
    nothing."""
    drawing = (
        "step 00\ncomm name=a 00\ncomm name=b .0\nstep r1 00\ncomm r1 name=b 00\ncomm r1 name=a"
        " .0\ncomm r1 name=c .0"
    )
    trace = timeline(f"{drawing}\nstep r2 00\ncomm r2 name=c 00\ncompute r2 .0{others}")
    assert {0: {"straggler": 10}, 1: {"straggler": 20}} == charges(trace).straggler_wait_ns


def test_waiting_outside_of_steps_is_not_charged() -> None:
    """A collective may outlast the last step, as when a job ends."""
    trace = timeline(
        "step 00..\ncomm .000\nwait 0...\nfetch w0 0...\nstep r1 0000\ncomm r1 ...0\ncompute r1"
        " 000."
    )
    assert {1: {"compute": 10}} == charges(trace).straggler_wait_ns


def test_one_rank_alone_waits_for_nobody() -> None:
    """With one rank recorded the whole exchange is transfer."""
    trace = timeline(
        "step 0000\nwait 0000\nfetch w0 0000\ncomm .000\ncompute ....0", config={"ranks": 2}
    )
    assert {(0, 0): {"exchange": 3, "h2d": None, "loader": 1}} == charged(blame(trace))


def test_arrivals_closer_than_the_clocks_are_one() -> None:
    """Law 5: no rank is called late by less than the clocks' uncertainty."""
    drawing = (
        "step 0000\ncomm 0000\nwait 00..\nfetch w0 0...\nstep r1 0000\ncomm r1 .000\ncompute ....0"
    )
    assert 3 == charged(blame(timeline(drawing)))[0, 0]["exchange"]
    assert 4 == charged(blame(timeline(drawing, clocks={"uncertainty_ns": 10})))[0, 0]["exchange"]


def test_what_nothing_covers_is_host() -> None:
    """Also spans of the user's own, whose names are in the details."""
    trace = timeline(
        "step 00000\nuser name=metric .##..\nwait 0....\nfetch w0 0....\ncompute ....0"
    )
    assert {"compute": 1, "h2d": None, "loader": 1, "host": 3} == charged(blame(trace))[0, 0]
    assert {"host": [("metric", 20)], "loader": []} == details(trace, "host", "loader")
    assert {"host": 20} == charges(trace).details.explained_ns


def test_checkpoints_collections_and_validation_are_causes() -> None:
    """Of the main thread. A checkpoint within a validation is a checkpoint; a device that computes
    hides it, a collection too."""
    trace = timeline("""
        step            0000000000000000
        validate        ..########......
        compute         ....00..........
        checkpoint      .......0........
        checkpoint      ..........0.0...
        gc name=oldest  ...........0.0..
        compute         ............00..
        gc w0           ..............#.
        checkpoint w0   ...............#
        """)
    expected = {
        "compute": 2,
        "h2d": None,
        **dict.fromkeys(LEAVES),
        "validation": 7,
        "checkpoint": 2,
        "gc": 1,
        "host": 4,
    }
    assert expected == charged(blame(trace))[0, 0]
    assert {"gc": [("oldest", 10)], "validation": [("host", 50), ("compute", 20)]} == details(
        trace, "gc", "validation"
    )


def test_a_wait_to_validate_is_validation() -> None:
    """It is known by its name; the time between two such waits belongs to it, whatever is done."""
    trace = timeline(
        "step 000000\nwait name=validate 00.0..\nwait ....1.\nfetch w0 00..1\nread w0 ##\ncompute"
        " ..0..0"
    )
    expected = {"compute": 1, "h2d": None, "loader": 1, "validation": 4}
    assert expected == charged(blame(trace))[0, 0]
    assert [("storage", 20), ("compute", 10), ("delivery", 10)] == details(trace, "validation")[
        "validation"
    ]


def test_a_validation_lasts_from_its_first_wait_to_its_last() -> None:
    """The start of its workers and the end of its loader included."""
    trace = timeline(
        """
        step               000000000011111111
        wait name=start    .#........#.......
        wait name=validate ...0..0...........
        wait name=end      ........#.........
        wait               ...........1..1...
        compute main       ....00......1.....
        """,
        config={"device": "cpu"},
    )
    assert [80, 0] == blame(trace)["validation_ns"].to_list()


def test_a_training_step_is_no_part_of_a_validation() -> None:
    """A loop that validates on one batch within each step: what follows that wait may be the
    training's."""
    trace = timeline(
        "step 00001111\nwait 0.......\nwait name=validate ..0.....\nwait .....1..\ncompute main"
        " .0.0..11"
    )
    assert [10, 0] == blame(trace)["validation_ns"].to_list()


def test_compute_of_an_earlier_step_counts_where_it_runs() -> None:
    """Launches are asynchronous: step 0 computes while step 1 waits, which hides that wait."""
    trace = timeline("step 0000011111\nwait 000..111..\nfetch w0 00.11111..\ncompute .....000..")
    expected = {
        (0, 0): {"h2d": None, "delivery": 1, "loader": 2, "host": 2},
        (0, 1): {"compute": 3, "h2d": None, "host": 2},
    }
    assert expected == charged(blame(trace))


# ----------------------------------------------------------------------- what could not be measured


READING = (
    "step 0000\nwait 0000\nfetch w0 0000\nread w0 {} ##..\nread w0 {} ..##\ncompute ....0\nh2d"
    " ....0"
)


@pytest.mark.parametrize(
    ("sources", "run", "expected"),
    [
        (("storage", "cache"), {}, {"storage": 2, "page_cache": 2}),
        (("unknown", "cache"), {}, {"storage": 2, "page_cache": 2}),
        (("unknown", "storage"), {}, {"storage": 4}),
        (("unknown", "unknown"), {}, {"storage": 4, "page_cache": None}),
        (
            ("storage", "cache"),
            {"capture": {"reads": False}},
            {"storage": None, "page_cache": None, "loader": 4},
        ),
    ],
)
def test_unknown_is_not_zero(
    sources: tuple[str, str], run: dict[str, Any], expected: dict[str, int | None]
) -> None:
    """Reads of unknown source are charged to storage; what could not be measured is null, and its
    time stays in the loader."""
    assert {(0, 0): expected} == charged(blame(timeline(READING.format(*sources), **run)))


@pytest.mark.parametrize(
    ("drawing", "run", "expected"),
    [
        (READING.format("unknown", "unknown"), {}, {"page_cache": Reason.SOURCES_UNKNOWN}),
        (
            READING.format("cache", "cache"),
            {"capture": {"reads": False}},
            dict.fromkeys(("storage", "page_cache"), Reason.READS_NOT_CAPTURED),
        ),
        (READING.format("cache", "cache"), {}, {}),
    ],
)
def test_reasons(drawing: str, run: dict[str, Any], expected: dict[str, str]) -> None:
    """Every null has its reason, and nothing else has one."""
    assert expected == unmeasured(timeline(drawing, **run))


@pytest.mark.parametrize(
    ("drawing", "config", "expected"),
    [
        ("step 00\ncompute main 00\nwait 0.\nfetch 0.", {"device": "cpu"}, set()),
        ("step 00\ncompute 00\nwait 0.\nfetch 0.", {"device": "cuda"}, {"h2d"}),
        ("step 00\ncompute 00\nwait 0.\nfetch 0.", {"device": None}, {"h2d"}),
        ("step 00\ncompute main 00\nwait 0.\nfetch 0.", {"device": None}, set()),
        (
            "step 00\ncompute main 00\nwait 0.\nfetch 0.",
            {"device": "cpu", "ranks": 2},
            {"exchange", "straggler"},
        ),
        ("step 00\nwait 0.\nfetch 0.", {"device": "cpu"}, {"compute"}),
        ("step 00\ncompute main 00", {"device": "cpu"}, set(LEAVES)),
        ("step 00\ncompute main 00\nwait 0.", {"device": "cpu"}, set(LEAVES) - {"loader"}),
        ("step 00\ncompute main 00\nwait 0.", {"device": "cpu", "loader": "null"}, set()),
    ],
)
def test_what_did_not_occur_is_zero_and_what_was_not_seen_is_null(
    drawing: str, config: dict[str, Any], expected: set[str]
) -> None:
    """A CPU copies nothing, one rank exchanges nothing, the null loader fetches nothing; else what
    is absent is unknown."""
    assert expected == set(unmeasured(timeline(drawing, config=config)))


def test_an_empty_trace_has_an_empty_table() -> None:
    """A job that was stopped before its first step."""
    trace = Trace(RunRecord(), timeline("step 0").spans.clear())
    assert ["rank", "step", "start_ns", "end_ns", *COLUMNS] == blame(trace).columns
    assert 0 == len(blame(trace))
