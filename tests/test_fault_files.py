"""Perf files, byte by byte: the meaning of records, the selection of records, and that no file
raises."""

import ctypes
import mmap
import struct
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perf_files import PAGE, ended, fork, header, mapping, minor, named, record, sample, switch

from ioprof.format import perf
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import table_schema
from ioprof.ingest.page_faults.faults import (
    IN_FLIGHT_NS,
    PROCESS_COLUMNS,
    Faults,
    read_faults,
    waits_for_calls,
)
from ioprof.ingest.page_faults.mappings import UNMAPPED, Mappings
from ioprof.instrument import perf_events
from ioprof.instrument.faults import RecordSelector

FILE = 0x7F00_0000_0000
"""Address at which the jobs map their file."""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a file to write and read."""
    return tmp_path_factory.mktemp("perf") / "a.perf"


def read(place: Path, *records: bytes, **fields: object) -> Faults:
    place.write_bytes(header(**fields) + b"".join(records))
    return read_faults(place, numbers().__getitem__)


def numbers() -> dict[bytes, int]:
    """The id of a file is the length of its path."""

    class ByLength(dict[bytes, int]):
        def __missing__(self, path: bytes) -> int:
            return len(path)

    return ByLength()


def rows(found: Faults, *names: str) -> list[tuple[object, ...]]:
    return found.spans.select(names).rows()


# -------------------------------------------------------------------------------- what records mean


def test_a_fault_begins_when_its_thread_gave_up_the_core(place: Path) -> None:
    """Switched out at 5, in at 9, end of the fault at 10. The offset is that of the mapping plus
    that of the page in it."""
    mapped = mapping(1, FILE, 8 * PAGE, 16 * PAGE, b"/data/a")
    found = read(place, mapped, switch(5, "out"), switch(9, "in"), sample(10, FILE + 3 * PAGE + 77))
    assert [(5, 10, 10, PAGE, 7, 19 * PAGE, "storage")] == rows(
        found, "start_ns", "end_ns", "pid", "bytes", "file", "offset", "source"
    )


END = 50_000_000
WOKEN = END - perf.FAULT_CPU_NS // 2
SLEEPS = {
    "never": ([], END),
    "its own": ([switch(30, "out"), switch(WOKEN, "in")], 30),
    "the last of two": (
        [switch(1, "out"), switch(2, "in"), switch(30, "out"), switch(WOKEN, "in")],
        30,
    ),
    "and then waited for a core": (
        [switch(30, "out"), switch(40, "in"), switch(41, "preempted"), switch(WOKEN, "in")],
        30,
    ),
    "for something else, long before": ([switch(1, "out"), switch(2, "in")], END),
    "of another thread": ([switch(30, "out", tid=11), switch(WOKEN, "in", tid=11)], END),
    "only taken from its core": ([switch(30, "preempted"), switch(WOKEN, "in")], END),
    "before the fault before": (
        [switch(30, "out"), switch(WOKEN, "in"), sample(WOKEN + 1, FILE)],
        END,
    ),
}


@pytest.mark.parametrize("slept", SLEEPS)
def test_which_sleep_belongs_to_the_fault(place: Path, slept: str) -> None:
    """The last one of its thread since the previous fault, unless the thread ran on after it;
    otherwise the length is 0."""
    records, start_ns = SLEEPS[slept]
    found = read(place, *records, sample(END, FILE))
    assert (start_ns, END) == rows(found, "start_ns", "end_ns")[-1]


def test_a_minor_fault_is_one_that_slept(place: Path) -> None:
    """It slept just before its end, on a page of a file, near another fault; others took no time.
    It does not count as major."""
    found = read(
        place,
        mapping(0, FILE, PAGE, 0, b"/a"),
        sample(1, FILE),
        minor(2, FILE),
        *(switch(10, "out"), switch(20, "in"), minor(20 + perf.MINOR_CPU_NS, FILE)),
        *(switch(100_010, "out"), switch(100_020, "in"), minor(100_021 + perf.MINOR_CPU_NS, FILE)),
        *(switch(200_010, "out"), switch(200_020, "in"), minor(200_021, FILE + PAGE)),
        sample(200_022, FILE),
    )
    assert [(1, 1, 2), (10, 20 + perf.MINOR_CPU_NS, 2), (200_022, 200_022, 2)] == rows(
        found, "start_ns", "end_ns", "file"
    )
    assert (1, 2, 2) == (found.facts.minor, found.facts.faults, found.processes["faults"].sum())


def test_a_minor_fault_after_a_call_that_fetched_its_file_waited_for_it(place: Path) -> None:
    """Of the same process and file, not long before; the call has the bytes. Its records alone do
    not say so."""
    slept = switch(10, "out"), switch(20, "in"), minor(21, FILE)
    found = read(place, mapping(0, FILE, PAGE, 0, b"/a"), *slept)
    assert (0, [(10, 21, 2)]) == (
        len(found.spans),
        found.undecided.select("start_ns", "end_ns", "file").rows(),
    )

    def waits(**changed: int) -> list[tuple[object, ...]]:
        call = {"kind": "read", "pid": 10, "file": 2, "start_ns": 5, "end_ns": 6} | changed
        calls = pl.DataFrame([call], schema=table_schema(SPAN_COLUMNS))
        columns = ("start_ns", "end_ns", "kind", "source", "bytes")
        return waits_for_calls(found.undecided, calls).select(columns).rows()

    assert [(10, 21, "fault", "storage", 1)] == waits()
    others = {"pid": 11}, {"file": 3}, {"start_ns": 11}, {"start_ns": -IN_FLIGHT_NS}
    assert [[]] * 4 == [waits(**each) for each in others]


def test_without_switch_events_the_duration_is_unknown(place: Path) -> None:
    """SWITCH events are enabled until a record says otherwise; the facts separate faults of length
    0 from unknown lengths."""
    off, on = (
        perf.state_record(perf.SWITCH_STATE, False, 1, 20),
        perf.state_record(perf.SWITCH_STATE, True, 1, 40),
    )
    short = [sample(time, FILE) for time in (10, 30, 50)]
    found = read(place, on, off, *short, switch(60, "out"), switch(70, "in"), sample(71, FILE))
    assert [(10, 10), (30, 30), (50, 50), (60, 71)] == rows(found, "start_ns", "end_ns")
    assert (2, 1) == (found.facts.unblocked, found.facts.unwatched)
    for between in ([off], [off, on]):
        found = read(
            place,
            switch(5, "out"),
            *between,
            sample(50, FILE),
            switch(60, "out"),
            switch(70, "in"),
            sample(71, FILE),
        )
        # it may have run again since 5 without a record
        assert [(50, 50), (60, 71)] == rows(found, "start_ns", "end_ns")
    assert {} == +found.damage


def test_faults_of_the_recorder_are_not_counted(place: Path) -> None:
    """Events enabled by ioctl also record the recorder itself."""
    assert [(20,)] == rows(read(place, sample(1, FILE, 10), sample(2, FILE, 20), pid=10), "pid")


def test_a_fault_in_a_capture_file_is_not_one_of_the_job(place: Path) -> None:
    """It is counted, but is no span. A folder whose name merely has the same prefix is another
    folder."""
    spool = bytes(place.parent.resolve())
    paths = [spool + b"/a.ring", spool + b"2/a.ring", b"/a.ring"]
    maps = [mapping(1, FILE + number * PAGE, PAGE, 0, path) for number, path in enumerate(paths)]
    found = read(place, *maps, *(sample(2 + number, FILE + number * PAGE) for number in range(3)))
    assert [len(path) for path in paths[1:]] == found.spans["file"].to_list()
    assert (3, 1) == (found.facts.faults, found.facts.own)


def test_a_new_mapping_replaces_what_it_covers(place: Path) -> None:
    """A file, then another over its middle, then anonymous memory over its first page: a fault
    finds the latest mapping."""
    found = read(
        place,
        mapping(1, FILE, 8 * PAGE, 0, b"/a"),
        sample(2, FILE + 2 * PAGE),
        mapping(3, FILE + 2 * PAGE, 2 * PAGE, 0, b"/bb"),
        mapping(4, FILE, PAGE, 0, b"//anon"),
        *(sample(5 + number, FILE + number * PAGE) for number in range(9)),
    )
    files = [2, None, 2, 3, 3, 2, 2, 2, 2, None]
    offsets = [2, None, 1, 0, 1, 4, 5, 6, 7, None]
    assert files == found.spans["file"].to_list()
    assert [None if page is None else page * PAGE for page in offsets] == found.spans[
        "offset"
    ].to_list()
    assert (1, 1) == (found.facts.anonymous, found.facts.unmapped)


def test_a_child_has_its_parents_mappings_until_it_executes(place: Path) -> None:
    """Later mappings of either process are its own."""
    found = read(
        place,
        mapping(1, FILE, PAGE, 0, b"/a"),
        fork(2, 20),
        mapping(3, FILE, PAGE, 0, b"/bb"),
        sample(4, FILE, 20),
        sample(5, FILE, 10),
        mapping(6, FILE, PAGE, 0, b"/ccc", 20),
        sample(7, FILE, 20),
        sample(8, FILE, 10),
        named(9, b"fresh", 20),
        sample(10, FILE, 20),
    )
    assert [(20, 2), (10, 3), (20, 4), (10, 3), (20, None)] == rows(found, "pid", "file")


def test_a_number_given_again_is_another_process(place: Path) -> None:
    """The new process has its own faults, times, name and end."""
    found = read(
        place,
        named(0, b"sh", 10),
        fork(1, 20),
        named(2, b"one", 20),
        mapping(3, FILE, PAGE, 0, b"/bin/one", 20),
        sample(4, FILE, 20),
        ended(5, 20),
        fork(6, 20),
        sample(7, FILE, 20),
    )
    columns = ("pid", "parent_pid", "name", "executable", "first_ns", "last_ns", "ended", "faults")
    assert [
        (10, None, "sh", None, 0, 6, False, 0),
        (20, 10, "one", "/bin/one", 1, 5, True, 1),
        (20, 10, "sh", None, 6, 7, False, 1),
    ] == found.processes.select(columns).rows()
    assert [8, None] == found.spans["file"].to_list()


def test_a_process_ends_with_its_last_thread(place: Path) -> None:
    """The name of another thread is not the name of the process."""
    first = [
        named(0, b"job", executed=False),
        fork(1, 10, 10, 11),
        named(1, b"thread", 10, executed=False, tid=11),
        ended(2, 10),
    ]
    assert [("job", False)] == read(place, *first).processes.select("name", "ended").rows()
    assert [True] == read(place, *first, ended(3, 10, 11)).processes["ended"].to_list()


def test_a_setuid_program_is_named(place: Path) -> None:
    """The kernel ends its events at the execve, which looks like an end before the first
    mapping."""
    found = read(place, fork(1, 20), named(2, b"su", 20), ended(3, 20))
    assert ("su", False, True) == found.processes.select("name", "ended", "left_at_exec").row(1)


def test_a_process_is_captured_by_the_library_in_it(place: Path) -> None:
    """Also by the library in the process that it was forked from, until it executes a program
    without the library."""
    found = read(
        place,
        named(1, b"python"),
        mapping(2, FILE, PAGE, 0, b"/venv/ioprof/_capture.abi3.so"),
        *(
            fork(3, 20),
            fork(4, 30),
            named(5, b"static", 30),
            mapping(6, FILE, PAGE, 0, b"/bin/static", 30),
        ),
        *(
            fork(7, 40),
            named(8, b"other", 40),
            mapping(9, FILE, PAGE, 0, b"/usr/lib/libioprof/x_capture.so", 40),
        ),
    )
    assert [(10, True), (20, True), (30, False), (40, False)] == found.processes.select(
        "pid", "captured"
    ).rows()


def test_deleted_and_nameless_files(place: Path) -> None:
    """A deleted file keeps its name; anonymous memory is distinguished from addresses without a
    mapping."""
    paths = [b"/a (deleted)", b"//toolong", b"[stack]", b"/dev/zero (deleted)"]
    maps = [mapping(1, FILE + number * PAGE, PAGE, 0, path) for number, path in enumerate(paths)]
    found = read(place, *maps, *(sample(2 + number, FILE + number * PAGE) for number in range(5)))
    assert [2, None, None, None, None] == found.spans["file"].to_list()
    assert (2, 1) == (found.facts.anonymous, found.facts.unmapped)


def test_lost_records_are_counted(place: Path) -> None:
    """By the LOST records of the rings if the file was not closed."""
    lost = record(perf.LOST, 0, np.array([0, 7, 10, 99], "<u8").tobytes())
    assert 14 == read(place, lost, lost, lost=-1, faults=-1).facts.lost
    assert 20 == read(place, lost, lost, lost=20).facts.lost


# --------------------------------------------------------------------------------------------- laws

addresses = st.integers(0, 40)


@given(
    st.lists(
        st.tuples(addresses, addresses, st.integers(0, 100), st.integers(-1, 5), st.booleans())
    )
)
def test_mappings_agree_with_an_array_of_pages(
    steps: list[tuple[int, int, int, int, bool]],
) -> None:
    """A table of ranges gives the same result for each page as an array of pages; a fork does not
    change its parent."""
    mappings, pages = Mappings(), np.full((41, 2), [UNMAPPED, -1])
    others = []
    for first, end, offset, file, forks in steps:
        if first < end:
            if forks:
                others.append((mappings, pages.copy()))
                mappings = mappings.fork()
            mappings.add(first, end, offset, file)
            pages[first:end] = [(file, offset + number) for number in range(end - first)]
    for table, expected in [*others, (mappings, pages)]:
        for places in (np.arange(41), np.arange(3)):  # many at once, and few
            files, offsets = table.find(places)
            assert expected[places].tolist() == np.column_stack([files, offsets]).tolist()


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Records of some threads in the order of time: context switches, faults and mappings."""
    time, history = 0, []
    for _ in range(draw(st.integers(0, 40))):
        time += draw(
            st.sampled_from(
                [1, 10, perf.MINOR_CPU_NS, perf.FAULT_CPU_NS // 2, 2 * perf.FAULT_CPU_NS]
            )
        )
        tid = draw(st.integers(10, 12))
        what = draw(st.sampled_from(["out", "in", "preempted", "fault", "fault", "minor", "map"]))
        if what in ("fault", "minor"):
            touch = sample if what == "fault" else minor
            history.append(touch(time, FILE + draw(st.integers(0, 4)) * PAGE, tid=tid))
        elif what == "map":
            history.append(mapping(time, FILE, 3 * PAGE, 0, b"/data"))
        else:
            history.append(switch(time, what, tid=tid))
    return history


@given(
    histories(),
    st.lists(st.integers(0, 40)),
    st.sampled_from([None, 10**9, 10**18]),
    st.lists(
        st.builds(
            perf.state_record,
            st.just(perf.SWITCH_STATE),
            st.booleans(),
            st.just(1),
            st.integers(0, 2_000_000),
        ),
        max_size=3,
    ),
)
def test_selection_changes_no_span(
    place: Path, history: list[bytes], cuts: list[int], settled_ns: int | None, marks: list[bytes]
) -> None:
    """For any division of the records into pieces, any held back or deferred part, and any switch
    states."""
    selector, selected, bounds = (
        RecordSelector(),
        [],
        [0, *sorted(min(cut, len(history)) for cut in cuts), len(history)],
    )
    for first, end in pairwise(bounds):
        selected.append(selector.select(b"".join(history[first:end]), settled_ns))
    selected.append(selector.select(b"", None))
    whole, rest = read(place, *history, *marks), read(place, *selected, *marks)
    assert whole.spans.equals(rest.spans)
    assert whole.facts == rest.facts
    assert sum(piece[:1] == bytes([perf.SWITCH]) for piece in history) == selector.switches


@given(histories())
def test_faults_are_not_deferred(place: Path, history: list[bytes]) -> None:
    """Records with a fault are examined at once; without one after 20 seconds (5 after faults), or
    when there are many."""
    faults = sum(piece[:1] == bytes([perf.SAMPLE]) for piece in history)
    assert perf.may_have_faults(b"".join(history)) or not faults
    selector = RecordSelector()
    selector.select(b"".join(history), 10**9)
    assert selector.majors + selector.minors == faults
    selector, switches = RecordSelector(), [switch(10**11 + number, "in") for number in range(100)]
    assert b"" == selector.select(b"".join(switches), 19 * 10**9)
    assert (0, 0) == (selector.switches, selector.examined_ns)
    assert b"" == selector.select(b"", 20 * 10**9)
    assert (100, 20 * 10**9) == (selector.switches, selector.examined_ns)
    selector.select(b"".join(switches * 450), 20 * 10**9)
    assert 45_100 == selector.switches
    selector.select(sample(10**11, FILE), 21 * 10**9)
    selector.select(b"".join(switches), 25 * 10**9)
    assert 45_100 == selector.switches
    selector.select(b"", 26 * 10**9)
    assert 45_200 == selector.switches


def test_selection_keeps_three_records_of_a_fault(place: Path) -> None:
    """However often its thread slept before, and whatever other threads do."""
    others = [
        switch(time, how, tid=tid)
        for time in range(100)
        for tid in (10, 11)
        for how in ("out", "in")
    ]
    kept, _ = perf.read_records(
        RecordSelector().select(
            b"".join([*others, switch(200, "out"), switch(300, "in"), sample(310, FILE)]), None
        )
    )
    assert [200, 300, 310] == kept.times.tolist()


def test_waits_for_storage_are_those_in_mapped_files() -> None:
    """Minor faults that slept: in data always, in a library shortly after a major fault, in private
    or shared memory never."""
    data, library, shared, private = (number << 30 for number in range(1, 5))
    paths = {
        data: b"/data/train.bin",
        library: b"/lib/libtorch.so.2",
        shared: b"/dev/shm/torch_1",
        private: b"//anon",
    }

    def slept(time: int, address: int) -> bytes:
        return switch(time, "out") + switch(time + 100, "in") + minor(time + 110, address)

    selector = RecordSelector()
    selector.select(
        b"".join(mapping(1, address, 2 * PAGE, 0, path) for address, path in paths.items()), None
    )
    late = 10 + RecordSelector.LIBRARY_READAHEAD_NS
    waits = []
    for time, address in (
        (10, private),
        (210, shared),
        (410, library),
        (610, data),
        (810, data + PAGE),
        (1010, data + 2 * PAGE),
    ):
        selector.select(slept(time, address), None)
        waits.append(selector.waits)
    assert [0, 0, 0, 1, 2, 2] == waits
    selector.select(
        sample(2000, library)
        + slept(2100, library + PAGE)
        + slept(2300, private)
        + slept(late + 2000, library),
        None,
    )
    assert 4 == selector.waits
    assert 9 == selector.minors


def test_pages_of_the_recordings_own_files_are_no_wait() -> None:
    """Each is new when it is touched first, which is a major fault. What the same process or
    another one maps at the same address later counts."""
    own = 0x10000
    selector = RecordSelector(b"/tmp/spool")
    waits = []
    for time, (pid, path) in enumerate(
        (
            (1, b"/etc/ld.so.cache"),
            (1, b"/tmp/spool/a.ring"),
            (2, b"/tmp/spools/data"),
            (1, b"/tmp/data"),
        )
    ):
        selector.select(mapping(10 * time, own, PAGE, 0, path, pid=pid), None)
        selector.select(sample(10 * time + 5, own, pid=pid), None)
        waits.append(selector.waits)
    assert ([1, 1, 2, 3], 4) == (waits, selector.majors)


@given(st.integers(0, 20), st.integers(0, 4), st.binary(min_size=8 * 8, max_size=8 * 8))
def test_a_ring_is_read_around_its_end(tail: int, length: int, written: bytes) -> None:
    """The kernel writes at the head modulo the ring size, up to the tail."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    ring = perf_events.Ring(ctypes.addressof(ctypes.c_char.from_buffer(memory)), mmap.PAGESIZE)
    size = ring.size
    start, data = size * tail // 16 // 8 * 8, written * (length * size // 4 // len(written))
    for place, byte in enumerate(data):
        memory[mmap.PAGESIZE + (start + place) % size] = byte
    memory[1024:1040] = struct.pack("<QQ", start + len(data), start)  # data_head and data_tail
    assert data == perf_events.read_rings([ring])
    assert struct.pack("<Q", start + len(data)) == memory[1032:1040]


@given(histories(), st.integers(0, 2_000_000))
def test_records_of_two_cpus_are_merged_by_time(
    place: Path, history: list[bytes], settled_ns: int
) -> None:
    """Each CPU has its own ring, and one is read before the other: unsettled records are held back
    for earlier ones."""
    selector = RecordSelector()
    pieces = [
        selector.select(b"".join(history[1::2]), 0),
        selector.select(b"".join(history[::2]), settled_ns),
        selector.select(b"", None),
    ]
    assert read(place, *history).spans.equals(read(place, *pieces).spans)


@given(histories(), st.randoms())
def test_the_order_in_the_file_does_not_matter(
    place: Path, history: list[bytes], random: object
) -> None:
    """Only times matter; all of these differ."""
    shuffled = history.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert read(place, *history).spans.equals(read(place, *shuffled).spans)


# ------------------------------------------------------------------------------------ invalid files


def well_formed(found: Faults) -> bool:
    schemas = found.spans.schema == table_schema(
        SPAN_COLUMNS
    ) and found.processes.schema == pl.Schema(PROCESS_COLUMNS)
    return schemas and bool((found.spans["start_ns"] <= found.spans["end_ns"]).all())


@given(st.binary(max_size=600))
def test_any_bytes_are_read(place: Path, data: bytes) -> None:
    """Random bytes raise nothing, with or without a valid header before them."""
    place.write_bytes(data)
    found = read_faults(place, numbers().__getitem__)
    assert well_formed(found)
    assert found.damage
    assert well_formed(read(place, data))


kinds = st.sampled_from(
    [
        perf.MMAP,
        perf.LOST,
        perf.COMM,
        perf.EXIT,
        perf.FORK,
        perf.SAMPLE,
        perf.MMAP2,
        perf.SWITCH,
        0,
        99,
    ]
)
words = st.one_of(st.integers(0, 100), st.integers(0, 2**64 - 1))


@given(st.lists(st.tuples(kinds, st.integers(0, 2**16 - 1), st.lists(words, max_size=14))))
def test_any_record_is_read(place: Path, parts: list[tuple[int, int, list[int]]]) -> None:
    """Records with the right sizes and random contents: invalid ones are dropped, none is taken for
    another."""
    records = [record(kind, misc, np.array(body, "<u8").tobytes()) for kind, misc, body in parts]
    found = read(place, *records, sample(100, FILE, pid=4711))
    assert well_formed(found)
    assert 0 == found.damage["truncated within a record, or not written by the kernel"]
    assert 4711 in found.spans["pid"]


@given(histories(), st.integers(0, 1000), st.integers(0, 10_000))
def test_a_cut_file_keeps_what_is_before_the_cut(
    place: Path, history: list[bytes], at: int, garbage: int
) -> None:
    """A killed recorder or a full disk leaves such a file."""
    data = header() + b"".join(history)
    end = perf.HEADER_BYTES + at % (len(data) - perf.HEADER_BYTES + 1)
    lengths = np.cumsum([perf.HEADER_BYTES, *(len(piece) for piece in history)])
    whole = int(np.searchsorted(lengths, end, side="right")) - 1
    place.write_bytes(data[:end])
    found = read_faults(place, numbers().__getitem__)
    assert read(place, *history[:whole]).spans.equals(found.spans)
    assert (end != lengths[whole]) == bool(+found.damage)


def test_files_that_are_not_perf_files_are_reported(place: Path, tmp_path: Path) -> None:
    """Missing, a folder, empty, truncated in its header, of another version."""
    found = [read_faults(path, len).damage for path in (tmp_path / "missing", tmp_path)]
    for data in (b"", header()[:100], header(version=99)):
        place.write_bytes(data)
        found.append(read_faults(place, len).damage)
    assert [
        {"cannot be read: No such file or directory": 1},
        {"cannot be read: Is a directory": 1},
        {"empty: the recorder ended while it started": 1},
        {"truncated within its header": 1},
        {"not a perf file that this version of ioprof reads": 1},
    ] == [dict(Counter(damage)) for damage in found]
