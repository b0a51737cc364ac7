"""What is charged to the training process itself: its main thread, and threads of it that read and
decode; a drawing for each."""

import polars as pl
import pytest
from timeline import TICK_NS, charged, details, timeline
from told import summarise

from ioprof.analysis.charge.blame import blame, charges
from ioprof.format.run_record import Reason
from ioprof.format.schema import CAUSES, CORE_WAIT
from ioprof.format.trace import Trace


def test_a_loop_that_reads_is_charged_with_that() -> None:
    """Before a computation and within one, with no loader at all; also what it receives from
    another process."""
    trace = timeline(
        """
        step           000000000000
        read file=3    .##.........
        decode         ..##........
        read cache     .....#......
        compute main   ......000000
        fault file=4   .......##...
        read socket    ....#.......
        transform      ...........#
        """,
        config={"device": "cpu"},
    )
    loader = dict.fromkeys(("collate", "delivery", "loader"))
    expected = {
        "compute": 3,
        "storage": 5,
        "page_cache": 1,
        "decode": 1,
        "transform": 1,
        **loader,
        "host": 1,
    }
    assert expected == charged(blame(trace))[0, 0]
    assert {"storage": 50, "page_cache": 10, "decode": 10, "transform": 10} == charges(trace).own_ns


def test_a_device_that_computes_hides_what_the_main_thread_does() -> None:
    """Only where it does not compute, reads of the main thread cost time."""
    trace = timeline("step 0000\nread ####\ncompute .00.\nwait ...0\nfetch w0 0...\nh2d ...0")
    assert {"compute": 2, "storage": 1, "h2d": 1} == charged(blame(trace))[0, 0]


def test_files_and_folders_are_named() -> None:
    """The largest first; of very many files their folders."""
    trace = timeline(
        "step 00000000\nread file=1 ##......\nread file=2 ..###...\ncompute main ........"
    )
    files = pl.DataFrame(
        {"file": [1, 2], "path": ["/data/a.bin", "/data/b.bin"]},
        schema_overrides={"file": pl.Int64},
    )
    trace = Trace(
        trace.run,
        trace.spans,
        trace.files.clear().join(files, on=["file", "path"], how="full", coalesce=True),
    )
    assert [("/data/b.bin", 30), ("/data/a.bin", 20)] == details(trace, "storage")["storage"]


def test_what_is_received_while_it_waits_is_part_of_the_wait() -> None:
    """The main thread reads a finished batch from a pipe, an exchange from a socket; a worker waits
    for its next task at a pipe."""
    trace = timeline("""
        step          0000000000
        wait          .0000.....
        fetch w0      ..00......
        read w0 pipe  ####......
        read pipe     .####.....
        comm          ......000.
        read socket   .....####.
        """)
    expected = {
        "compute": None,
        "h2d": None,
        "exchange": 3,
        "storage": 3,
        "delivery": 1,
        "loader": 1,
        "host": 2,
    }
    assert expected == charged(blame(trace))[0, 0]


def test_the_sampler_is_the_loaders() -> None:
    """It delays the batch whatever the workers do meanwhile."""
    trace = timeline(
        "step 000000\nwait 0000..\nsampler .##...\nfetch w0 000...\ndecode w0 ###\ncompute ....00"
    )
    assert {"compute": 2, "h2d": None, "decode": 1, "delivery": 1, "loader": 2} == charged(
        blame(trace)
    )[0, 0]
    assert [("sampler", 20)] == details(trace, "loader")["loader"]


def test_a_thread_with_a_batch_is_a_worker() -> None:
    """Its fetch says which batch; an unrelated thread is not looked at."""
    trace = timeline(
        "step 00000\nwait 0000.\nfetch t0 000..\nread t0 ##...\nread t1 ..#..\ncompute ....0\nh2d"
        " ....0"
    )
    assert {"compute": 1, "storage": 3, "delivery": 1} == charged(blame(trace))[0, 0]
    assert {"storage": 10} == charges(trace).derived_ns


def test_a_wait_for_threads_is_charged_by_time() -> None:
    """No fetch made the batch: what the threads did meanwhile, and that is derived."""
    trace = timeline(
        "step 00000\nwait 0000.\nread t0 ##...\ndecode t1 .##..\ncompute ....0\nh2d ....0"
    )
    missing = dict.fromkeys(("transform", "collate", "delivery"))
    assert {"compute": 1, "storage": 2, "decode": 1, **missing, "loader": 1} == charged(
        blame(trace)
    )[0, 0]
    assert {"storage": 20, "decode": 10} == charges(trace).derived_ns
    shares = {entry.cause: entry.basis for entry in summarise(trace).steps.causes}
    assert ("derived", "derived", "measured") == (
        shares["storage"],
        shares["decode"],
        shares["loader"],
    )


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        # handed over at the end, as where the main thread takes the result
        (
            "########..",
            {"storage": 8, "host": 2},
        ),
        ("######....", {"host": 10}),  # ended long before: the main thread did something else
        (".......##.", {"host": 10}),  # was busy for a short time only
    ],
)
def test_without_waits_threads_are_charged_if_it_looks_like_a_wait(
    threads: str, expected: dict[str, int]
) -> None:
    """A stretch of the main thread of which nothing is known, long enough, filled with their work
    until its last quarter."""
    trace = slower(
        timeline(
            f"step 000000000000\nread t0 {threads}..\ncompute main ..........00",
            config={"device": "cpu"},
        )
    )
    found = charges(trace)
    seconds = {
        cause: row
        for cause, row in found.steps.row(0, named=True).items()
        if cause.endswith("_ns") and row
    }
    scale = 1_000_000 * TICK_NS
    assert {
        f"{cause}_ns": count * scale for cause, count in {"compute": 2, **expected}.items()
    } == {cause: ns for cause, ns in seconds.items() if cause not in ("start_ns", "end_ns")}
    host = summarise(trace).steps.causes[CAUSES.index("host")]
    assert ("storage" in expected) == (host.reason_code is not Reason.THREADS_MAY_BE_AWAITED)


@pytest.mark.parametrize("work", ["read", "decode", "transform"])
@pytest.mark.parametrize("who", ["t0", "main"])
def test_advice_about_threads_is_not_to_use_threads(work: str, who: str) -> None:
    """Their work is done beside the loop already; what the main thread does is advised to be done
    there."""
    drawing = f"step 000000000000\n{work} {who} ##########..\ncompute main ..........00"
    found = summarise(slower(timeline(drawing, config={"device": "cpu"}))).verdict
    actions = " ".join(advice.action for advice in found.findings)
    assert {"read": "storage"}.get(work, work) == found.bound_by
    assert ("t0" == who) == (
        "waited for 83.3% of the steps' time while threads of its process" in found.text
    )
    assert ("t0" == who) == ("while the loop waits for them" in actions)
    assert ("main" == who) == ("ahead of the step that uses it" in actions)
    # that a core is idle was not recorded
    assert ("t0" == who and "read" == work) == ("among more threads" in actions)


def test_a_span_of_the_user_says_what_the_main_thread_did() -> None:
    """Then threads that read meanwhile are not what it waited for."""
    trace = slower(
        timeline(
            "step 0000000000\nread t0 ########\nuser name=augment ########\ncompute main ........00"
        )
    )
    assert 0 == charges(trace).steps["storage_ns"].sum()


def test_a_wait_for_a_core_does_not_say_what_the_main_thread_did() -> None:
    """It may have waited for a core while it waited for threads: these are charged as without that
    span."""
    drawing = "step 0000000000\nread t0 ########\ncompute main ........00"
    trace = slower(timeline(f"{drawing}\nuser name=core ########"))
    named = trace.spans.with_columns(
        pl.col("name").cast(pl.String).replace("core", CORE_WAIT).cast(trace.spans["name"].dtype)
    )
    without, found = (
        charges(each).steps for each in (slower(timeline(drawing)), Trace(trace.run, named))
    )
    assert without["storage_ns"].to_list() == found["storage_ns"].to_list()
    assert 0 < found["storage_ns"].sum()


def slower(trace: Trace) -> Trace:
    """The same with a millionth of the speed."""
    return Trace(trace.run, trace.spans.with_columns(pl.col("start_ns", "end_ns") * 1_000_000))
