"""Blocks of threads and who ended them: the matching against a slow one, every kind of call in C,
libraries that have no hook for it, and the kernel's own record of wake-ups."""

import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from compiling import compiled
from hypothesis import given
from hypothesis import strategies as st
from kernel_wakings import (
    KINDS,
    NoTracerError,
    known_ratio,
    last_wakers,
    right_ratio,
    traced_wakings,
)
from preload import LIBRARY, captured, needs_library, run_captured, run_python

from ioprof.analysis.graph.wakers import Wakers
from ioprof.format.layout import RECORD_DTYPE
from ioprof.format.schema import OBJECTS, OF_SEVERAL, RECORDS_OF_WAITS
from ioprof.ingest.wakers import Waits, blocks_of

pytestmark = needs_library

LEAST_KNOWN = 0.9
"""Part of the blocked time of the waiting thread whose end has a cause."""
LEAST_RIGHT = 0.95
"""Part of the blocked time whose waker the kernel names as well."""
LAST_WAITS = 30
"""Of a loop that waits for an actor,"""
LEAST_OF_ACTOR = 0.5
"""and the part of them from the middle of which the way leads to the actor's thread."""


# ----------------------------------------------------------------------------------------- matching


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Blocks and wakes of a few threads on a few objects, at times that are often equal."""
    found = []
    for _ in range(draw(st.integers(1, 25))):
        start = draw(st.integers(0, 30))
        found.append(
            {
                "kind": RECORDS_OF_WAITS[draw(st.sampled_from(["block", "wake"]))],
                "start_ns": start,
                "end_ns": start + draw(st.integers(0, 12)),
                "process": draw(st.integers(0, 1)),
                "tid": draw(st.integers(1, 3)),
                "object": OBJECTS.index(draw(st.sampled_from(["lock", "channel", "room"]))),
                "id": draw(st.sampled_from([1, 5, 6, OF_SEVERAL | 5])),
                "how": draw(st.sampled_from([0, 0, 1, 2, 3])),
            }
        )
    return found


def table_of(found: list[dict[str, Any]]) -> pl.DataFrame:
    """What `blocks_of` makes of records; process 0 has the pid 10, and 1 has 11."""
    waits = [Waits(), Waits()]
    for number, each in enumerate(waits):
        own = [row for row in found if row["process"] == number]
        rows = np.zeros(len(own), RECORD_DTYPE)
        for place, row in enumerate(own):
            rows[place]["kind"], rows[place]["source"] = row["kind"], row["object"] + 1
            rows[place]["start_ns"], rows[place]["end_ns"] = row["start_ns"], row["end_ns"]
            rows[place]["offset"], rows[place]["bytes"] = row["id"], row["how"]
        each.add(rows, np.array([row["tid"] for row in own], np.int64))
    processes = [("node", 10 + number, None, each) for number, each in enumerate(waits)]
    return blocks_of(processes, lambda _, table: table)


def are_ends(wake: dict[str, Any], block: dict[str, Any]) -> bool:
    """Whether a call can have ended a block: on its object, by another thread, and within it."""
    is_same = wake["id"] == block["id"] and (
        wake["id"] >= OF_SEVERAL or wake["process"] == block["process"]
    )
    is_other = (wake["process"], wake["tid"]) != (block["process"], block["tid"])
    is_within = wake["start_ns"] <= block["end_ns"] and wake["end_ns"] >= block["start_ns"]
    return is_same and is_other and is_within and wake["object"] == block["object"]


@given(records())
def test_a_waker_is_another_thread_that_called_within_the_block(
    found: list[dict[str, Any]],
) -> None:
    """Each waker made such a call; a block without one is unknown, or ended by its own time."""
    table = table_of(found)
    blocks = [each for each in found if each["kind"] == RECORDS_OF_WAITS["block"]]
    wakes = [each for each in found if each["kind"] == RECORDS_OF_WAITS["wake"]]
    assert len(blocks) >= len(table)
    for row in table.iter_rows(named=True):
        same = [
            block
            for block in blocks
            if (block["start_ns"], block["end_ns"], block["tid"], block["how"] == 1)
            == (row["start_ns"], row["end_ns"], row["tid"], row["timed_out"])
            and block["process"] == row["pid"] - 10
            and OBJECTS[block["object"]] == row["object"]
            and (block["id"] if block["id"] > 1 else None) == row["id"]
        ]
        assert same
        ends = [
            wake
            for wake in wakes
            for each in same
            if are_ends(wake, each) and wake["id"] > 1 and (wake["how"] == 2) == (each["how"] == 2)
        ]
        if row["woken_ns"] is None:
            assert row["waker_pid"] is None
            continue
        assert not row["timed_out"]
        assert (row["waker_pid"] - 10, row["waker_tid"], row["woken_ns"]) in {
            (wake["process"], wake["tid"], wake["start_ns"]) for wake in ends
        }


def block(start: int, end: int, tid: int, kind: str, number: int = 5) -> dict[str, Any]:
    """A record of a block of the first process."""
    return {
        "kind": RECORDS_OF_WAITS["block"], "start_ns": start, "end_ns": end, "process": 0,
        "tid": tid, "object": OBJECTS.index(kind), "id": number, "how": 0,
    }  # fmt: skip


def wake(time: int, tid: int, kind: str, number: int = 5, until: int = 0) -> dict[str, Any]:
    """A record of a wake of the first process."""
    made = block(time, max(until, time), tid, kind, number)
    return {**made, "kind": RECORDS_OF_WAITS["wake"]}


def waker_of(*found: dict[str, Any]) -> int | None:
    """The thread that ended the first block."""
    return table_of(list(found))["waker_tid"][0]  # type: ignore[no-any-return]


def test_the_first_message_ends_a_wait_for_one_and_the_last_release_one_for_a_lock() -> None:
    """Two calls lie within the block."""
    assert 2 == waker_of(block(0, 9, 1, "channel"), wake(4, 2, "channel"), wake(6, 3, "channel"))
    assert 3 == waker_of(block(0, 9, 1, "lock"), wake(4, 2, "lock"), wake(6, 3, "lock"))


def test_a_message_that_another_thread_took_ended_nothing() -> None:
    """Two threads wait at one pipe: the first message is received by the other one."""
    taken = wake(4, 9, "room", until=5)
    found = (block(0, 9, 1, "channel"), wake(3, 2, "channel"), taken, wake(7, 3, "channel"))
    assert 3 == waker_of(*found)


def test_a_call_before_or_after_the_block_did_not_end_it() -> None:
    """Nor one on another object, or by the thread itself."""
    blocked = block(5, 9, 1, "semaphore")
    for other in (
        wake(3, 2, "semaphore"), wake(10, 2, "semaphore"), wake(7, 1, "semaphore"),
        wake(7, 2, "semaphore", 6), wake(7, 2, "lock"),
    ):  # fmt: skip
        assert waker_of(blocked, other) is None


def test_a_wait_that_was_hung_up_was_ended_by_the_last_that_closed_or_ended() -> None:
    """A close by one of several ends nothing; nor does a message end such a block."""
    blocked = {**block(0, 9, 1, "channel"), "how": 2}
    closed = [{**wake(time, tid, "channel"), "how": 2} for time, tid in ((2, 2), (5, 3))]
    ended = {**wake(7, 4, "process", 10), "how": 2}
    assert 3 == waker_of(blocked, *closed, wake(8, 9, "channel"))
    assert 4 == waker_of(blocked, *closed, ended)
    assert waker_of(block(0, 9, 1, "channel"), *closed, ended) is None
    assert 4 == waker_of({**blocked, "how": 3}, *closed, ended)


def test_what_a_process_had_open_is_closed_after_its_end_was_recorded() -> None:
    """A read that begins meanwhile waits for that; one that begins much later does not."""
    hung_up = {**block(50, 90, 1, "channel"), "how": 2}
    ended = {**wake(40, 4, "process", 10), "how": 2}
    assert 4 == waker_of(hung_up, ended)
    late = 10**9
    assert waker_of({**hung_up, "start_ns": late, "end_ns": late + 9}, ended) is None


def test_a_read_during_which_nobody_sent_is_no_block() -> None:
    """The other end is recorded, so it would have been seen; of one that is not, nothing is
    known."""
    read = block(0, 9, 1, "channel")
    assert table_of([read, wake(20, 2, "channel")]).is_empty()
    assert 1 == len(table_of([read, wake(20, 2, "channel", 6)]))
    assert 1 == len(table_of([{**read, "how": 1}, wake(20, 2, "channel")]))


def test_no_process_no_block() -> None:
    """An empty table has the columns of any other."""
    assert (
        blocks_of([], lambda _, table: table).columns == table_of([block(0, 9, 1, "lock")]).columns
    )


# ------------------------------------------------------------------------------ calls and libraries


@pytest.mark.job
def test_every_kind_of_wait_has_its_waker(tmp_path: Path) -> None:
    """Locks, conditions of both versions, semaphores, files, pipes, sockets, processes: what calls
    return is as without the library, and who ends a wait is known."""
    program = compiled("blocking_calls.c", tmp_path / "program")
    alone = subprocess.run([program, tmp_path], capture_output=True, text=True, check=True).stdout
    said = run_captured(tmp_path / "spool", program, tmp_path)
    names = [line.split(",")[0] for line in said.splitlines()]
    assert names == [line.split(",")[0] for line in alone.splitlines()]
    blocks = captured(tmp_path / "spool").blocks
    for line in said.splitlines():
        name, kind, tid, by_pid, by_tid = line.split(",")
        own = blocks.filter(pl.col("tid") == int(tid), pl.col("object") == kind)
        ended = (
            own.filter("timed_out")
            if by_tid == "0"
            else own.filter(pl.col("waker_pid") == int(by_pid), pl.col("waker_tid") == int(by_tid))
        )
        took_ms = ((ended["end_ns"] - ended["start_ns"]) / 1e6).to_list()
        assert any(took > 2 for took in took_ms), (name, own)


@pytest.mark.job(every=4)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_knows_who_woke_it(kind: str, tmp_path: Path) -> None:
    """No hook of these libraries is needed for it."""
    if kind == "joblib" and find_spec("joblib") is None:
        pytest.skip("joblib is not installed")
    tid = int(run_python(tmp_path / "spool", "wait_for_others.py", kind))
    blocks = captured(tmp_path / "spool").blocks.filter(pl.col("tid") == tid)
    # whoever reads what the program prints last is not recorded
    printed = (pl.col("object") == "room") & (pl.col("start_ns") == pl.col("start_ns").max())
    blocks = blocks.filter(~printed)
    assert len(blocks) >= 5
    unknown = blocks.filter(~pl.col("timed_out"), pl.col("woken_ns").is_null())
    assert known_ratio(blocks) >= LEAST_KNOWN, unknown.rows()


@pytest.mark.system(every=4)
def test_a_wait_for_an_actor_leads_to_its_thread(tmp_path: Path) -> None:
    """From the loop by threads of C++ and Ray's own processes to the actor's, without a hook."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    said = run_python(tmp_path / "spool", "wait_for_actor.py").splitlines()[-1]
    if "timed out during startup" in said:
        pytest.skip(f"Ray: {said}")
    waits, works = (int(word) for word in said.split())
    blocks = captured(tmp_path / "spool").blocks
    start, end = pl.col("start_ns"), pl.col("end_ns")
    own = blocks.filter(pl.col("tid") == waits, pl.col("object") == "condition")
    last = own.filter(end - start > 10_000_000).sort("start_ns").tail(LAST_WAITS)
    instants = ((last["start_ns"] + last["end_ns"]) // 2).to_numpy()
    way = np.array(Wakers(blocks).way(np.full(len(last), waits), instants))
    assert (way == works).any(axis=0).mean() >= LEAST_OF_ACTOR, way.T


# ------------------------------------------------------------------------------- against the kernel


@pytest.mark.system
def test_the_kernel_names_the_same_wakers(tmp_path: Path) -> None:
    """Of the scheduler's own events, by time."""
    kinds = ("loader", "pool", "threads", "processes")
    try:
        with traced_wakings(tmp_path / "tracing") as folder:
            for kind in kinds:
                run_python(tmp_path / kind, "wait_for_others.py", kind)
            seen = last_wakers(folder)
    except NoTracerError as error:
        pytest.skip(str(error))
    for kind in kinds:
        assert right_ratio(captured(tmp_path / kind), seen) >= LEAST_RIGHT, kind


@pytest.mark.job
def test_a_process_that_is_not_recorded_gets_the_same(tmp_path: Path) -> None:
    """Without a spool the library passes every call on."""
    program = compiled("blocking_calls.c", tmp_path / "program")
    environment = {"LD_PRELOAD": str(LIBRARY), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run([program, tmp_path], env=environment, capture_output=True, text=True)
    assert (0, "") == (ended.returncode, ended.stderr)
    assert [] == list(tmp_path.glob("*.ring"))
