"""Counters of network file systems: all releases of Lustre, NFS, and the cost of reading them."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repository import ROOT

from ioprof.format.series import find_series
from ioprof.ingest.counters import read_counters
from ioprof.instrument.samplers import lustre, nfs
from ioprof.instrument.samplers.lustre import LustreCounters
from ioprof.instrument.samplers.lustre_stats import (
    parse_statistics,
    read_requests,
    split_parameters,
)
from ioprof.instrument.samplers.nfs import NfsCounters
from ioprof.instrument.samplers.rate_limit import LARGEST_SHARE, RateLimitedSource
from ioprof.instrument.samplers.readings import HOST, Readings
from ioprof.instrument.samplers.sampler import Sampler

DATA: Final = ROOT / "tests" / "data" / "storage"
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
NO_LCTL: Final = "/nonexistent/lctl"


def lustre_of(tree: Path, lctl: str = NO_LCTL) -> LustreCounters:
    return LustreCounters(str(tree / "proc"), str(tree / "sys"), lctl)


def values(counters: LustreCounters | NfsCounters) -> dict[str, float]:
    return counters.read().get(HOST, {})


def of_scratch(**expected: float) -> dict[str, float]:
    return {f"lustre.scratch.{name}": value for name, value in expected.items()}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the files of a client of 2.15, to modify."""
    return Path(shutil.copytree(DATA / "lustre-2.15", tmp_path / "client"))


# ------------------------------------------------------------------------------------------- Lustre


def test_a_client_of_2_10_has_all_in_proc() -> None:
    """Counts without times, names with blanks, and targets of the metadata server itself left
    out."""
    found = lustre_of(DATA / "lustre-2.10")
    expected = {
        **of_scratch(
            reads=40,
            read_bytes=4_000_000,
            opens=12,
            page_faults=0,
            readahead_hits=700,
            readahead_misses=300,
        ),
        **of_scratch(fetched_bytes=1_500_000, read_requests=15, read_request_time=15 * 250e-6),
        "lustre.scratch.metadata.close": 12,
        "lustre.scratch.metadata.getattr": 7,
        "lustre.scratch.metadata.intent_lock": 25,
        "lustre.scratch.metadata.read_page": 0,
    }
    assert expected == pytest.approx(values(found))
    assert [] == found.notes


def test_root_reads_all_counters_of_2_15() -> None:
    """Two mounts of one file system are summed, data from metadata servers counts, and times are in
    seconds."""
    found = lustre_of(DATA / "lustre-2.15")
    expected = {
        **of_scratch(
            reads=200,
            read_bytes=50_000_000,
            read_time=6.0,
            opens=100,
            open_time=0.05,
            page_faults=16,
        ),
        **of_scratch(page_fault_time=0.008, readahead_hits=12_000, readahead_misses=400),
        **of_scratch(fetched_bytes=12_120_000, read_requests=53, read_request_time=0.0265),
        "lustre.scratch.metadata.close": 50,
        "lustre.scratch.metadata.create": 1,
        "lustre.scratch.metadata.getattr": 0,
        "lustre.scratch.metadata.intent_lock": 130,
        "lustre.scratch.metadata.read_page": 4,
    }
    assert expected == pytest.approx(values(found))
    assert [] == found.notes


def test_any_user_reads_bounds_in_2_15(tree: Path) -> None:
    """Without debugfs requests are counted by the power of two of their pages, so bytes have
    bounds; notes list the rest."""
    exact = values(lustre_of(tree))
    shutil.rmtree(tree / "sys/kernel")
    found = lustre_of(tree)
    seen = values(found)
    assert 53 == seen["lustre.scratch.read_requests"]
    assert (2 * 5 * 128 + 3 * 8) * PAGE == seen["lustre.scratch.fetched_bytes_least"]
    assert (25 + 15 + 2 * 5 * 256 + 3 * 16) * PAGE == seen["lustre.scratch.fetched_bytes_most"]
    assert "lustre.scratch.fetched_bytes" in exact.keys() - seen.keys()
    missing = {"llite/stats", "llite/read_ahead_stats", "osc/stats", "mdc/stats"}
    assert missing == {note.split()[1] for note in found.notes}
    assert 130 == seen["lustre.scratch.metadata.intent_lock"]


@pytest.mark.job
def test_lctl_shows_2_17_to_any_user(tmp_path: Path) -> None:
    """If only lctl can read the counters, it is used; what it does not show either is noted."""
    program = tmp_path / "lctl"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = get_param ] && cat "{DATA}/lustre-2.17/lctl.txt"\nexit 1\n'
    )
    program.chmod(0o755)
    found = lustre_of(DATA / "lustre-2.17", str(program))
    expected = {
        **of_scratch(
            reads=100,
            read_bytes=25_000_000,
            read_time=3.0,
            opens=50,
            open_time=0.025,
            page_faults=0,
        ),
        **of_scratch(fetched_bytes=12_000_000, read_requests=50, read_request_time=0.015),
        "lustre.scratch.metadata.close": 50,
        "lustre.scratch.metadata.getattr": 0,
        "lustre.scratch.metadata.intent_lock": 130,
        "lustre.scratch.metadata.read_page": 0,
    }
    assert expected == pytest.approx(values(found))
    assert ["llite/read_ahead_stats"] == [note.split()[1] for note in found.notes]


@pytest.mark.job
@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\nexit 1\n",
        "#!/bin/sh\necho 'error: get_param: not found' >&2; echo junk\n",
        "junk",
    ],
)
def test_an_lctl_that_shows_nothing_is_not_called_again(tmp_path: Path, text: str) -> None:
    """That of 2.15 reads the same files, which this user may not read."""
    program = tmp_path / "lctl"
    program.write_text(text)
    program.chmod(0o755)
    found = lustre_of(DATA / "lustre-2.17", str(program))
    program.unlink()
    assert {"metadata"} == {name.split(".")[2] for name in values(found)}
    assert {"llite/stats", "osc/stats", "mdc/stats", "llite/read_ahead_stats"} == {
        note.split()[1] for note in found.notes
    }


@pytest.mark.job
@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_files_for_root_are_noted_with_the_command_that_allows_access(tree: Path) -> None:
    """The note contains the file and the command for an administrator."""
    (tree / "sys/kernel/debug").chmod(0o700)
    with tempfile.TemporaryDirectory() as folder:
        client = Path(shutil.copytree(tree, Path(folder) / "client"))
        Path(folder).chmod(0o755)
        program = _AS_NOBODY.format(
            root=str(ROOT), proc=str(client / "proc"), sys=str(client / "sys")
        )
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
    assert 0 == ended.returncode, ended.stderr
    notes = json.loads(ended.stdout)
    assert 4 == len(notes)
    assert all(
        "readable by root only" in note and "chmod a+rx /sys/kernel/debug" in note for note in notes
    )


_AS_NOBODY: Final = """
import json, os, sys
sys.path.insert(0, {root!r})
from ioprof.instrument.samplers.lustre import LustreCounters
os.setuid(65534)
print(json.dumps(LustreCounters({proc!r}, {sys!r}, "/nonexistent/lctl").notes))
"""


def test_without_lustre_there_is_no_series(tmp_path: Path) -> None:
    """Neither a series nor a note on a host without Lustre."""
    found = lustre_of(tmp_path)
    assert (False, [], {}) == (found.is_present, found.notes, found.read())


def test_a_file_system_may_be_unmounted(tree: Path) -> None:
    """Its files disappear; the others are still read."""
    found = lustre_of(tree)
    shutil.rmtree(tree / "sys/kernel/debug/lustre/osc")
    assert 3 == values(found)["lustre.scratch.read_requests"]


def test_every_series_of_a_network_file_system_is_defined(tree: Path) -> None:
    """All series of all releases have a unit and a meaning in the table of series."""
    every = (
        set(values(lustre_of(DATA / "lustre-2.10")))
        | set(values(lustre_of(tree)))
        | set(values(nfs_of(DATA / "nfs")))
    )
    shutil.rmtree(tree / "sys/kernel")
    every |= set(values(lustre_of(tree)))
    assert [] == [name for name in sorted(every) if find_series(name) is None]


garbled = st.one_of(
    st.binary(max_size=300),
    st.sampled_from(sorted(path.read_bytes() for path in DATA.rglob("*") if path.is_file())),
)


@given(garbled, st.integers(0, 2000), st.binary(max_size=8))
def test_corrupt_statistics_are_ignored(data: bytes, cut: int, noise: bytes) -> None:
    """Any text, truncated anywhere: values are non-negative numbers or missing."""
    text = data[:cut] + noise + data[cut:][:2000]
    for what in (
        "llite/stats",
        "llite/read_ahead_stats",
        "osc/stats",
        "osc/rpc_stats",
        "mdc/md_stats",
    ):
        assert all(value >= 0 for value in lustre.values_in(what, text).values())
    assert all(value >= 0 for value in nfs.values_in(text).values())
    assert all(isinstance(name, str) for name, _ in split_parameters(text))


@given(
    st.dictionaries(
        st.integers(0, 12).map(lambda power: 1 << power), st.integers(0, 10**9), min_size=1
    ),
    st.integers(0, 2**32),
)
def test_what_was_fetched_lies_within_the_bounds(counts: dict[int, int], seed: int) -> None:
    """For requests of any size the bytes lie between the lower and the upper bound."""
    rows = "".join(
        f"{pages}:\t\t{count:10} 100 100   |          0   0   0\n"
        for pages, count in sorted(counts.items())
    )
    found = read_requests(
        f"x\n\t\t\tread\npages per rpc  rpcs\n{rows}\n1:\t\t 7 1 1 | 0 0 0\n".encode()
    )
    assert found
    # each request of a bucket has between one byte more than half of its pages, and all of them
    true_pages = sum(
        count * ((seed % (pages - pages // 2)) + pages // 2 + 1) for pages, count in counts.items()
    )
    assert sum(counts.values()) == found.requests
    assert found.least_pages <= true_pages <= found.most_pages


@given(
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1)
    .map(str.strip)
    .filter(bool),
    st.integers(0, 10**18),
)
def test_a_statistic_of_any_name_is_parsed(name: str, count: int) -> None:
    """Names may contain blanks and hyphens; the count is the number before "samples"."""
    found = parse_statistics(
        f"snapshot_time   1.0 secs.nsecs\n{name:<25} {count} samples [pages]\n".encode()
    )
    assert found is not None
    assert [count] == [statistic.count for statistic in found.values()]


# ---------------------------------------------------------------------------------------------- NFS


def nfs_of(folder: Path) -> NfsCounters:
    """The counters of a process whose /proc/self holds these files."""
    with tempfile.TemporaryDirectory() as proc:
        shutil.copytree(folder, Path(proc) / "self")
        counters = NfsCounters(proc)
        found = counters.read()
    counters.read = lambda: found  # type: ignore[method-assign]
    return counters


def test_nfs_counts_are_those_of_mountstats() -> None:
    """Bytes, requests and times of each mount: one with a blank in its name, READ_PLUS of NFS 4.2,
    one without requests."""
    found = values(nfs_of(DATA / "nfs"))
    expected = {
        "read_bytes": 10_000_000,
        "fetched_bytes": 6_500_000,
        "requests": 1052,
        "retransmissions": 3,
        "read_requests": 1010,
        "read_round_trip_time": 4.04,
        "read_request_time": 4.142,
    }
    assert {f"nfs./data sets.{name}": value for name, value in expected.items()} == pytest.approx(
        {name: value for name, value in found.items() if "data" in name}
    )
    assert {0.0} == {value for name, value in found.items() if "/old" in name}
    assert not [name for name in found if "/tmp" in name or "/proc" in name]


def test_a_host_without_nfs_is_not_read_again(tmp_path: Path) -> None:
    """No NFS mount: no file is read at every sample."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("22 1 254:0 / / rw - ext4 /dev/vda rw\n")
    counters = NfsCounters(str(tmp_path))
    assert (False, {}, []) == (counters.is_present, counters.read(), counters.notes)


# ------------------------------------------------------------------------------------ what it costs


class Clock:
    """A clock whose time the test sets."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20), st.integers(10**6, 10**10))
def test_an_expensive_source_is_read_less_often(costs_ns: list[int], period_ns: int) -> None:
    """For any duration of a reading, readings take at most the given share of time, except for the
    last, forced one."""
    clock, times, left = Clock(), [], list(costs_ns)

    def read() -> dict[tuple[int | None, int], dict[str, float]]:
        times.append(clock.now_ns)
        clock.now_ns += left.pop(0)
        return {HOST: {"x": 1.0}}

    source = RateLimitedSource(read, clock)
    while left:
        source.read()
        clock.now_ns += period_ns
    gaps = [after - before for before, after in pairwise(times)]
    assert all(gap >= int(cost / LARGEST_SHARE) for gap, cost in zip(gaps, costs_ns, strict=False))
    left.append(1)
    assert (clock.now_ns, {HOST: {"x": 1.0}}) == source.read(force=True)


def test_a_sample_is_counted_when_it_is_complete(tree: Path, tmp_path: Path) -> None:
    """While the counters of file systems are read, only earlier samples are counted."""
    counted = []

    class Observed(LustreCounters):
        def read(self) -> Readings:
            counted.append(sampler.facts()["samples"])
            return {}

    sampler = Sampler(
        str(tmp_path), 60, lambda: [Observed(str(tree / "proc"), str(tree / "sys"), NO_LCTL)]
    )
    with sampler:
        pass
    assert list(range(sampler.facts()["samples"])) == counted


def test_a_recording_on_a_client_has_its_series_from_first_to_last(
    tree: Path, tmp_path: Path
) -> None:
    """The bytes fetched by a job are the difference between the last sample, after its end, and the
    first."""
    spool = tmp_path / "spool"
    spool.mkdir()
    stats = next(tree.glob("sys/kernel/debug/lustre/osc/*OST0000*/stats"))
    with Sampler(str(spool), 0.02, lambda: [lustre_of(tree)]) as sampler:
        first = threading.Event()
        while not sampler.facts()["samples"]:
            first.wait(0.01)
        stats.write_text(stats.read_text().replace(" 8000000 ", " 9500000 "))
    found = (
        read_counters(spool)
        .table.filter(name="lustre.scratch.fetched_bytes")
        .sort("time_ns")["value"]
        .to_list()
    )
    assert 1_500_000 == found[-1] - found[0]
