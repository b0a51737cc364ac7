"""In which calls of the runtime a thread of the host waited for the device, and which thread it
was."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_files import ANCHOR, MONO_NS, document, event, meta, write
from strategies import examples

from ioprof.ingest import kineto
from ioprof.ingest.kineto.waits import FULL_QUEUE
from ioprof.ingest.kineto.window import number_in_file
from ioprof.interchange.kineto import read_kineto

T = MONO_NS
US = 1_000
MS = 1_000_000
LOOP, OTHER = 41, 77
IDENT: Final = 0x7F2A_8C3F_E740
"""What `threading` calls the loop's thread."""
MARKS = [(6, T), (7, T + 10 * MS), (8, T + 20 * MS)]
KNOWN = {"thread": IDENT, "threads": [[IDENT, LOOP]]}


def call(name: str, at_ns: int, dur_ns: int, correlation: int = 0, thread: int = LOOP) -> str:
    """A call of the runtime, or of the driver by its name."""
    category = (
        "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"
    )
    return event(
        category, name, at_ns, dur_ns, device=41, stream=thread, cbid=1, correlation=correlation
    )


def kernel(at_ns: int, dur_ns: int, correlation: int) -> str:
    """A kernel, launched by the call of the same correlation."""
    return event("kernel", "k", at_ns, dur_ns, correlation=correlation)


def read(folder: Path, *events: str, **about: Any) -> kineto.Window:
    """The window of a file with these events."""
    return kineto.read_window(*write(folder, document(*events), meta(MARKS, **KNOWN | about)))


def waits(window: kineto.Window, *columns: str) -> list[tuple[Any, ...]]:
    """The spans of kind `sync`."""
    return window.spans.filter(kind="sync").select(columns or ("start_ns", "end_ns")).rows()


def test_a_wait_is_a_span_of_the_host(tmp_path: Path) -> None:
    """On its thread, without a stream, in the step in which it began; its name is that of the call
    without its version."""
    events = [
        call("cudaLaunchKernel", T + MS, 5 * US, 1),
        kernel(T + 2 * MS, 6 * MS, 1),
        call("cudaStreamSynchronize_v3020", T + 3 * MS, 5 * MS, 2),
    ]
    window = read(tmp_path, *events)
    (span,) = window.spans.filter(kind="sync").rows(named=True)
    expected = {
        "start_ns": T + 3 * MS,
        "end_ns": T + 8 * MS,
        "kind": "sync",
        "host": "node1",
        "rank": 3,
        "pid": 41,
        "tid": LOOP,
        "step": 7,
        "name": "cudaStreamSynchronize",
    }
    assert expected == {name: value for name, value in span.items() if value is not None}
    assert (5 * MS, 2) == (window.facts().loop_waited_ns, window.facts().spans)
    assert window.spans["start_ns"].is_sorted()


@pytest.mark.parametrize(
    ("name", "took_us", "expected"),
    [
        *((f"cuda{what}Synchronize", 2, True) for what in ("Device", "Stream", "Event")),
        *((f"cu{what}Synchronize", 2, True) for what in ("Ctx", "Stream", "Event")),
        *((f"hip{what}Synchronize", 2, True) for what in ("Device", "Stream", "Event")),
        ("cudaStreamSynchronize_ptsz", 2, True),
        ("cudaMemcpy", 20, True),
        ("cuMemcpyDtoH_v2", 20, True),
        ("cudaMemcpyAsync", 20, False),
        ("cudaMemcpyAsync", 60, True),
        ("hipMemcpyAsync", 60, True),
        ("cuMemcpyHtoDAsync_v2", 60, True),
        ("cudaLaunchKernel", 45, False),
        ("cudaLaunchKernel", 60, True),
        ("cudaLaunchKernelExC", 60, True),
        ("cuLaunchKernel", 60, True),
        ("hipModuleLaunchKernel", 60, True),
        ("cudaMemsetAsync", 60, True),
        ("cudaEventRecord", 60, True),
        ("cudaStreamWaitEvent", 60, True),
        ("cudaGraphLaunch", 400, False),
        ("cudaGraphLaunch", 600, True),
        ("cudaMalloc", 5000, False),
        ("cudaHostAlloc", 5000, False),
        ("cudaFreeHost", 5000, False),
        ("cudaFreeAsync", 5000, False),
        ("cuModuleLoadData", 5000, False),
        ("cudaEventQuery", 5000, False),
        ("cudaGraphInstantiate", 5000, False),
    ],
)
def test_which_calls_wait_while_the_device_is_busy(
    tmp_path: Path, name: str, took_us: int, expected: bool
) -> None:
    """By name, and by how long they took."""
    busy = [call("cudaLaunchKernel", T, 5 * US, 1), kernel(T + 10 * US, 9 * MS, 1)]
    found = waits(read(tmp_path, *busy, call(name, T + MS, took_us * US, 2)))
    assert ([(T + MS, T + MS + took_us * US)] if expected else []) == found


@pytest.mark.parametrize(
    "name", ["cudaLaunchKernel", "cudaMemsetAsync", "cudaGraphLaunch", "cudaFree"]
)
def test_a_long_call_waits_for_nothing_while_the_device_is_idle(tmp_path: Path, name: str) -> None:
    """The first launch of a kernel loads its module, and memory that is given back is unmapped."""
    done = [call("cudaLaunchKernel", T, 5 * US, 1), kernel(T + 10 * US, MS, 1)]
    own = [kernel(T + 7 * MS, MS, 2)] if name == "cudaLaunchKernel" else []
    assert [] == waits(read(tmp_path, *done, call(name, T + 2 * MS, 4 * MS, 2), *own))


def test_memory_is_given_back_when_the_device_is_done(tmp_path: Path) -> None:
    """`cudaFree` waits for what was launched before it; the rest of its time is its own work."""
    events = [
        call("cudaLaunchKernel", T, 5 * US, 1),
        kernel(T + MS, 3 * MS, 1),
        call("cudaFree", T + 2 * MS, 6 * MS, 2),
        call("cudaLaunchKernel", T + 9 * MS, 5 * US, 3),  # launched later
        kernel(T + 9 * MS + 10 * US, MS, 3),
    ]
    assert [(T + 2 * MS, T + 4 * MS)] == waits(read(tmp_path, *events))


def test_a_full_queue_makes_short_launches_wait(tmp_path: Path) -> None:
    """Each kernel of 15 us is launched in 5 us, until as many are queued as fit; then each launch
    takes as long as a kernel."""
    events, at_ns, device_ns, full = [], T, T, []
    for number in range(1, 900):
        is_full = at_ns < device_ns - FULL_QUEUE * 15 * US
        dur_ns = 12 * US if is_full else 5 * US
        full += [at_ns] if is_full else []
        events.append(call("cudaLaunchKernel", at_ns, dur_ns, number))
        device_ns = max(device_ns, at_ns + dur_ns)
        events.append(kernel(device_ns, 15 * US, number))
        device_ns += 15 * US
        at_ns += dur_ns + 1 * US
    found = [start for start, _ in waits(read(tmp_path, *events))]
    assert full
    assert set(full[2:]) <= set(found)  # at the limit it is one more or less
    assert len(found) <= len(full) + 2


@pytest.mark.parametrize("ident", [IDENT, 0x7F2A_0C3F_E740, 0xFFFF_FFFF_8000_0001])
def test_threads_by_what_cupti_calls_them(tmp_path: Path, ident: int) -> None:
    """The lower half of pthread_self() as a signed number, without its sign; or the system thread
    id, if torch recorded that."""
    low = ident & 0xFFFF_FFFF
    number = (1 << 32) - low if low >> 31 else low
    assert number == number_in_file(ident)
    for thread in (number, -number, LOOP):
        event_of = call("cudaDeviceSynchronize", T + MS, MS, thread=thread)
        window = read(tmp_path, event_of, thread=ident, threads=[[1, 5], [ident, LOOP]])
        assert [(LOOP,)] == waits(window, "tid")
        assert MS == window.loop_waited_ns


def test_threads_of_the_process(tmp_path: Path) -> None:
    """One of autograd works while the loop makes no call, and is taken as the loop; others are
    those that Python or Linux knows."""
    launches = [call("cudaLaunchKernel", T + at * MS, 5 * US) for at in (1, 2, 8, 9)]
    busy = [call("cudaLaunchKernel", T, 5 * US, 1), kernel(T + 10 * US, 19 * MS, 1)]
    autograd, unknown, pinning = 1_950_000_001, 1_950_000_002, 1_950_000_003
    events = [
        call("cudaLaunchKernel", T + 3 * MS, 2 * MS, thread=autograd),
        call("cudaLaunchKernel", T + 6 * MS, MS, thread=autograd),
        call("cudaStreamSynchronize", T + MS, 3 * MS, thread=unknown),
        call("cudaEventSynchronize", T + 4 * MS, MS, thread=pinning),
        call("cudaEventSynchronize", T + MS - US, 3 * US, thread=OTHER),
    ]
    window = read(
        tmp_path,
        *busy,
        *launches,
        *events,
        threads=[[IDENT, LOOP], [0x7F00_0000_0000 + pinning, 43]],
    )
    assert {
        (T + 3 * MS, LOOP),
        (T + 6 * MS, LOOP),
        (T + MS, None),
        (T + 4 * MS, 43),
        (T + MS - US, OTHER),
    } == set(waits(window, "start_ns", "tid"))
    assert 3 * MS == window.loop_waited_ns


def test_the_loop_may_not_be_known(tmp_path: Path) -> None:
    """Of a window that says nothing of threads, or nonsense: numbers that cannot be those of the
    system are left out."""
    events = [
        call("cudaDeviceSynchronize", T + MS, MS, thread=thread) for thread in (LOOP, 1_950_000_001)
    ]
    for threads in (None, [], [[0, 0]], [["a", 1]], [[IDENT]], {"a": 1}, [[IDENT, -1]]):
        window = read(tmp_path, *events, threads=threads)
        assert [(None,), (LOOP,)] == sorted(waits(window, "tid"), key=lambda row: row[0] or 0)
        assert window.loop_waited_ns is None


def test_what_ioprof_waits_for_is_left_out(tmp_path: Path) -> None:
    """It waits for the device before it ends a window, and while it starts one; the job's own waits
    beside that are kept."""
    times = (T + MS, T + 5 * MS, T + 19 * MS, T + 21 * MS)
    events = [call("cudaDeviceSynchronize", at_ns, MS) for at_ns in times]
    own = {"ready_ns": T + 2 * MS, "ending_ns": T + 20 * MS + 7, "stopped_ns": T + 25 * MS}
    assert [(T + 5 * MS, 7), (T + 19 * MS, 8)] == waits(
        read(tmp_path, *events, **own), "start_ns", "step"
    )
    older = read(tmp_path, *events, stopped_ns=T + 25 * MS)
    assert [T + MS, T + 5 * MS, T + 19 * MS] == [start for start, _ in waits(older)]


def test_a_file_of_another_program_has_them_too(tmp_path: Path) -> None:
    """In the steps of torch.profiler, with the numbers that threads have there."""
    steps = [
        event("user_annotation", f"ProfilerStep#{step}", T + step * MS, MS, device=41, stream=LOOP)
        for step in (1, 2)
    ]
    events = [
        call("cudaStreamSynchronize", T + at * US, 100 * US, thread=LOOP)
        for at in (1500, 2500, 3500)
    ]
    path, _ = write(tmp_path, document(*steps, *events), name="foreign")
    (found,) = read_kineto([path])
    spans = found.spans.filter(pl.col("kind") == "sync")
    assert [(1, LOOP), (2, LOOP)] == spans.select("step", "tid").rows()


def test_nothing_is_made_of_times_that_cannot_be(tmp_path: Path) -> None:
    """Without a base, without a clock reading, or out of range."""
    late = event("cuda_runtime", "cudaDeviceSynchronize", T, 1 << 62, device=41, stream=LOOP)
    path, _ = write(tmp_path, document(call("cudaDeviceSynchronize", T, MS), base=None))
    assert [] == waits(kineto.read_window(path, anchor=ANCHOR))
    assert [] == waits(read(tmp_path, late))
    path, _ = write(tmp_path, document(call("cudaDeviceSynchronize", T, MS)))
    window = kineto.read_window(path)
    assert ["no wall clock reading to convert its times with"] == list(+window.damage)


names = st.sampled_from(
    [
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
        "cudaFree",
        "cudaMalloc",
        "cuLaunchKernel",
    ]
)
calls = st.lists(
    st.tuples(
        names,
        st.integers(0, 18_000),
        st.integers(0, 3_000),
        st.integers(0, 9),
        st.sampled_from([LOOP, OTHER, 1_950_000_001]),
    ),
    max_size=20,
)
kernels = st.lists(
    st.tuples(st.integers(0, 19_000), st.integers(1, 2_000), st.integers(1, 9)), max_size=20
)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(made=calls, done=kernels, seed=st.integers(0, 1000))
def test_waits_are_parts_of_calls_that_do_not_overlap(
    tmp_path: Path, made: Any, done: Any, seed: int
) -> None:
    """Of each thread; whatever the order of the events in the file, and whether or not kernels are
    read with them."""
    events = [
        call(name, T + at * US, dur * US, number, thread) for name, at, dur, number, thread in made
    ]
    events += [kernel(T + at * US, dur * US, number) for at, dur, number in done]
    window = read(tmp_path, *events)
    found = waits(window, "tid", "start_ns", "end_ns", "name")
    for tid in {tid for tid, *_ in found}:
        mine = sorted((start, end) for each, start, end, _ in found if each == tid)
        assert all(end <= start for (_, end), (start, _) in pairwise(mine))
    inside = [(name, T + at * US, T + (at + dur) * US) for name, at, dur, *_ in made]
    for _, start, end, name in found:
        assert start < end
        assert any(name == own and first <= start and end <= last for own, first, last in inside)
    assert not {name for *_, name in found} & {"cudaMalloc"}
    random.Random(seed).shuffle(events)
    others = {"kernel", "h2d", "d2h", "comm"}
    again = read(tmp_path, *events)
    # of two launches with one number the first in the file counts
    if len({number for *_, number, _ in made}) == len(made):
        assert sorted(waits(again, "start_ns", "end_ns", "name")) == sorted(
            waits(window, "start_ns", "end_ns", "name")
        )
    assert len(done) >= sum(kind in others for kind in window.spans["kind"])
