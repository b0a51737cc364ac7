"""A probe's clients: what they read, in which order, when they stop; ground truth: the kernel's
counters."""

import errno
import os
import signal
import subprocess
import sys
from itertools import pairwise

import jobs
import numpy as np
import pytest
import slow_storage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from repository import ROOT
from strategies import examples

from ioprof import _probe
from ioprof.storage.probe import clients
from ioprof.storage.probe.outcomes import OUTCOME, Ending, Kind, Pieces, places_of
from ioprof.storage.residency import evict, warm

FILE_BYTES = 1 << 20
FOREVER = 1 << 20
"""More places than are read."""


run = clients.run_clients


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file of 1 MiB."""
    path = tmp_path_factory.mktemp("clients") / "file"
    path.write_bytes(os.urandom(FILE_BYTES))
    return path


@pytest.fixture
def descriptor(file):
    """The same, open."""
    opened = os.open(file, os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.fixture
def on_disk(file):
    """The file, where its page cache is that of a disk and reads are counted."""
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", file], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind in ("tmpfs", "overlayfs", "fuseblk"):
        pytest.skip(f"reads of {kind} are not counted; give pytest a --basetemp on a disk")
    return file


def ranges(descriptor, lengths, **more):
    """Places of these lengths from the begin of the file on."""
    lengths = np.array(lengths, np.int64)
    return Pieces(
        Kind.RANGES, (descriptor,), places_of(np.zeros(len(lengths), np.int64), 0, lengths), **more
    )


def read_by(name, process="self"):
    with open(f"/proc/{process}/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


LENGTHS = st.lists(st.integers(0, FILE_BYTES), max_size=40)
FEW = settings(
    max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FEW
@given(lengths=LENGTHS, number=st.integers(1, 9), in_order=st.booleans())
def test_each_place_is_read_once_and_whole(descriptor, lengths, number, in_order):
    """For any lengths, number of clients and order: every place, all of its bytes, by one of the
    clients."""
    found = run(ranges(descriptor, lengths, in_order=in_order), number)
    assert Ending.PLACES == found.ending
    assert lengths == found.outcomes["bytes"].tolist()
    assert set(found.outcomes["client"].tolist()) <= set(range(number))
    assert 0 == len(found.failed)


@FEW
@given(lengths=LENGTHS, number=st.integers(1, 9), limit=st.integers(0, 4 * FILE_BYTES))
def test_no_more_bytes_are_read_than_allowed(descriptor, lengths, number, limit):
    """The limit in bytes holds for all clients together; what fits in is read."""
    found = run(ranges(descriptor, lengths), number, limit_bytes=limit)
    assert found.read["bytes"].sum() <= limit
    assert (Ending.PLACES if sum(lengths) <= limit else Ending.BYTES) == found.ending or number > 1
    assert sum(lengths) > limit or lengths == found.outcomes["bytes"].tolist()


@FEW
@given(lengths=LENGTHS, number=st.integers(1, 9))
def test_time_goes_one_way(descriptor, lengths, number):
    """Start, opened, begin, end; a client's next place starts when the last has ended; and so n
    clients fill at most n times."""
    found = run(ranges(descriptor, lengths), number)
    rows = found.outcomes
    assert (rows["start_ns"] <= rows["opened_ns"]).all()
    assert (rows["opened_ns"] <= rows["begin_ns"]).all()
    assert (rows["begin_ns"] <= rows["end_ns"]).all()
    for client in range(number):
        own = np.sort(rows[rows["client"] == client], order="start_ns")
        assert (own["start_ns"][1:] >= own["end_ns"][:-1]).all()
    assert found.start_ns <= found.idle_ns
    if len(rows):
        assert found.start_ns <= rows["start_ns"].min()
        assert (rows["end_ns"] - rows["start_ns"]).sum() <= number * (
            rows["end_ns"].max() - found.start_ns
        )


@FEW
@given(lengths=st.lists(st.integers(0, 4096), min_size=1, max_size=60), number=st.integers(1, 9))
def test_in_order_each_client_has_a_part_of_its_own(descriptor, lengths, number):
    """The parts are those of equal length, the first client has the first, and each goes through
    its own in order."""
    rows = run(ranges(descriptor, lengths, in_order=True), number).outcomes
    ends = [len(lengths) * client // number for client in range(number + 1)]
    for client, (first, last) in enumerate(pairwise(ends)):
        assert {client} >= set(rows["client"][first:last].tolist())
        assert (np.diff(rows["start_ns"][first:last]) >= 0).all()


def test_the_kernel_counts_the_same_bytes(descriptor):
    """What the rows say was read is what /proc/self/io says that this process read, but for the
    reading of that file itself."""
    lengths = [1, 4096, 70_000, FILE_BYTES]
    before, again = read_by("rchar"), read_by("rchar")
    found = run(ranges(descriptor, lengths * 5), 3)
    after = read_by("rchar")
    assert 5 * sum(lengths) == found.read["bytes"].sum()
    # the file's own length changes with its numbers
    assert abs((after - again) - (again - before) - 5 * sum(lengths)) < 64


@pytest.mark.job
def test_what_the_device_gave_is_counted_by_the_kernel_as_well(on_disk):
    """Cold reads past the page cache: each row has its own bytes from the device, and together they
    are those of the process."""
    opened = os.open(on_disk, os.O_RDONLY | os.O_DIRECT)
    try:
        before = read_by("read_bytes")
        found = run(ranges(opened, [4096, 65536, FILE_BYTES], direct=True), 2)
        fetched = read_by("read_bytes") - before
    finally:
        os.close(opened)
    assert found.outcomes["bytes"].tolist() == found.outcomes["device_bytes"].tolist()
    assert fetched == found.outcomes["device_bytes"].sum()


@pytest.mark.system
def test_the_cache_is_asked_before_the_read(on_disk, descriptor):
    """Of a file of ours: nothing of it cached after an eviction, all of it once it was read."""
    assert 0 == evict([str(on_disk)]).resident_bytes
    cold = run(ranges(descriptor, [FILE_BYTES]), 1).outcomes
    if cold["cached_bytes"][0] == -1:
        pytest.skip("this kernel has no cachestat")
    with slow_storage.in_memory(on_disk):
        warm([str(on_disk)])
        cached = run(ranges(descriptor, [FILE_BYTES]), 1).outcomes
    assert [0, FILE_BYTES] == [cold["cached_bytes"][0], cached["cached_bytes"][0]]
    assert [FILE_BYTES, 0] == [cold["device_bytes"][0], cached["device_bytes"][0]]


def test_files_are_opened_read_and_closed(file, tmp_path):
    """Whole files by their paths, and nothing stays open."""
    names = [tmp_path / str(number) for number in range(9)]
    for number, name in enumerate(names):
        name.write_bytes(bytes(number * 1000))
    before = set(os.listdir("/proc/self/fd"))
    targets = tuple(map(os.fsencode, names))
    for kind, expected in (
        (Kind.FILES, [1000 * number for number in range(9)]),
        (Kind.OPENS, [0] * 9),
    ):
        found = run(Pieces(kind, targets, places_of(np.arange(9), 0, FILE_BYTES)), 4)
        assert expected == found.outcomes["bytes"].tolist()
        assert (found.outcomes["opened_ns"] > found.outcomes["start_ns"]).all()
    assert before == set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", [Kind.FILES, Kind.OPENS])
def test_what_is_no_file_fails_by_itself(file, tmp_path, kind):
    """A missing file and a folder have their errors in their rows; the others are read all the
    same."""
    targets = tuple(map(os.fsencode, (tmp_path / "missing", file, tmp_path, file)))
    found = run(Pieces(kind, targets, places_of(np.arange(4), 0, 10)), 2)
    got = 10 if kind == Kind.FILES else 0
    assert [-errno.ENOENT, got, -errno.ESPIPE, got] == found.outcomes["bytes"].tolist()
    assert [errno.ENOENT, errno.ESPIPE] == sorted(found.failed.tolist())


def test_a_named_pipe_is_not_waited_for(tmp_path):
    """A name whose status has not been read before may be a FIFO without a writer."""
    os.mkfifo(tmp_path / "pipe")
    found = run(Pieces(Kind.OPENS, (os.fsencode(tmp_path / "pipe"),), places_of([0], 0, 0)), 1)
    assert [errno.ESPIPE] == found.failed.tolist()


def test_time_ends_it():
    """A client whose read has ended after the time begins no other; by then not every place was
    read."""
    limit_ns = 20_000_000
    with open("/dev/zero", "rb") as zeros:
        found = run(ranges(zeros.fileno(), [4096] * FOREVER), 2, limit_ns=limit_ns)
    assert Ending.TIME == found.ending
    assert 0 < len(found.outcomes) < FOREVER
    for client in range(2):
        ended = np.sort(found.outcomes["end_ns"][found.outcomes["client"] == client])
        assert (ended[:-1] < found.start_ns + limit_ns).all()


READS_FOREVER = """
import numpy as np
from ioprof.storage.probe import clients
from ioprof.storage.probe.outcomes import Kind, Pieces, places_of
with open("/dev/zero", "rb") as zeros:
    pieces = Pieces(Kind.RANGES, (zeros.fileno(),), places_of(np.zeros(1 << 17, np.int64), 0, 4 << 20))
    clients.run_clients(pieces, 3)
"""  # noqa: E501


@pytest.mark.job
def test_a_signal_ends_it():
    """Ctrl-C is handled while clients read, and all of them stop."""
    running = subprocess.Popen(
        [sys.executable, "-c", READS_FOREVER], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    jobs.wait_until(lambda: running.poll() is not None or read_by("rchar", running.pid) > 64 << 20)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (-signal.SIGINT, "KeyboardInterrupt") == (running.returncode, said.split()[-1])


@pytest.mark.parametrize(
    ("targets", "places", "outcomes", "number"),
    [
        ((0,), places_of([1], 0, 1), 1, 1),
        ((0,), places_of([-1], 0, 1), 1, 1),
        ((0,), places_of([0], -1, 1), 1, 1),
        ((0,), places_of([0], 0, -1), 1, 1),
        ((0,), places_of([0], 1 << 62, 1), 1, 1),
        ((0,), places_of([0], 0, 1), 2, 1),
        ((0,), places_of([0], 0, 1), 1, 0),
        ((0,), places_of([0], 0, 1), 1, 1 << 30),
        ((), places_of([0], 0, 1), 1, 1),
    ],
)
def test_the_c_reader_takes_no_nonsense(targets, places, outcomes, number):
    """Places outside of the targets, rows that do not fit, no clients or too many: an error, and
    nothing is touched."""
    with pytest.raises(ValueError, match="no such place"):
        _probe.visit(
            0, targets, places, np.zeros(outcomes, OUTCOME), number, False, True, False, 1, 1
        )


def test_a_row_is_the_same_in_c(file):
    """The layout of a row in Python is that of `struct outcome`."""
    assert _probe.OUTCOME_BYTES == OUTCOME.itemsize
