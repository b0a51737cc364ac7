"""A probe: what it chooses to read, and what its numbers are. Ground truth: the kernel, a throttled
disk, a slow server."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import slow_storage
from fuse_server import fuse_server
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from repository import ROOT
from strategies import examples

from ioprof.clock import monotonic_ns
from ioprof.errors import CommandError
from ioprof.format.dataset import quantiles_of
from ioprof.storage.probe import (
    Allowance,
    Level,
    Missing,
    Plan,
    Ranges,
    RecordSizes,
    WholeFiles,
    clients_up_to,
    probe,
)
from ioprof.storage.probe.folders import find_read_targets
from ioprof.storage.probe.measure import LevelRun, latency_of, level_of
from ioprof.storage.probe.outcomes import OUTCOME, ClientRun, Ending, Kind, Pieces, places_of
from ioprof.storage.probe.scratch import scratch_files
from ioprof.storage.probe.targets import PIECE_BYTES, ColdPieces, Limits
from ioprof.storage.residency import residency

LATER = 10**18
"""A time that does not come."""


def random():
    return np.random.default_rng(0)


def limits(num_bytes):
    return Limits(num_bytes, LATER)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Two files of together 9 MB, of odd lengths."""
    folder = tmp_path_factory.mktemp("large")
    for name, length in (("a", 6_000_001), ("b", 3_000_123)):
        (folder / name).write_bytes(os.urandom(length))
    return [str(folder / "a"), str(folder / "b")]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """200 small files of different lengths."""
    folder = tmp_path_factory.mktemp("small")
    for number in range(200):
        (folder / f"{number:03d}").write_bytes(os.urandom(1000 + 37 * number))
    return sorted(str(path) for path in folder.iterdir())


def on_disk(path):
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True
    ).stdout.strip()
    return kind not in ("tmpfs", "overlayfs", "fuseblk")


# ----------------------------------------------------------------------------- how long records are


@given(st.lists(st.integers(1, 1 << 24), min_size=1, max_size=200), st.integers(0, 5))
def test_drawn_records_are_as_long_as_the_known_ones(lengths, seed):
    """For any records: between the minimum and the maximum, and exact where all are equal."""
    drawn = RecordSizes.of_quantiles(quantiles_of(lengths)).draw(300, np.random.default_rng(seed))
    assert min(lengths) <= drawn.min()
    assert drawn.max() <= max(lengths)


def test_the_mean_is_that_of_the_manifest():
    """Images of ImageNet, whose largest is 40 times the 99th percentile: the mean is known, so it
    is met."""
    usual = np.minimum(np.random.default_rng(1).lognormal(11.5, 0.6, 100_000), 400_000).astype(int)
    lengths = [*usual.tolist(), 15_400_000]
    sizes = RecordSizes.of_quantiles(quantiles_of(lengths))
    assert abs(sizes.mean / np.mean(lengths) - 1) < 0.02
    assert abs(sizes.draw(200_000, random()).mean() / np.mean(lengths) - 1) < 0.03
    assert 114_688.0 == RecordSizes.fixed(114_688).mean


@given(
    st.dictionaries(
        st.sampled_from(["min", "p5", "p25", "p50", "p75", "p95", "p99", "max", "mean"]),
        st.integers(0, 1 << 62),
    )
)
def test_quantiles_that_do_not_rise_are_mended(changed):
    """A manifest may say anything that is a number: records have at least a byte and at most what
    is read at all."""
    quantiles = {**quantiles_of([1000, 2000]), **changed}
    drawn = RecordSizes.of_quantiles(quantiles).draw(100, random())
    assert 1 <= drawn.min()
    assert drawn.max() <= 1 << 30


# ------------------------------------------------------------------------------------- what is read


def taken(material, places):
    """The bytes of each place, as (file, first page, end)."""
    return sorted(
        (int(target), int(offset), int(offset + length))
        for target, offset, length in places.tolist()
    )


@settings(max_examples=examples(30))
@given(record=st.integers(1, 1 << 21), direct=st.booleans(), num_bytes=st.integers(0, 12 << 20))
def test_ranges_lie_within_the_files_and_apart(large, record, direct, num_bytes):
    """At page boundaries, so that none shares a page with another, or O_DIRECT would be refused; no
    more bytes than allowed."""
    material = Ranges(large, RecordSizes.fixed(record), random())
    try:
        cold = material.random(direct, limits(num_bytes))
    finally:
        material.close()
    found = taken(material, cold.pieces.places)
    for (file, _, end), (next_file, start, _) in pairwise(found):
        assert file < next_file or -(-end // PIECE_BYTES) * PIECE_BYTES <= start
    for file, start, end in found:
        assert start % PIECE_BYTES == 0
        assert end <= -(-Path(material.paths[file]).stat().st_size // PIECE_BYTES) * PIECE_BYTES
        assert (
            -(-record // PIECE_BYTES) * PIECE_BYTES == end - start
            if direct
            else record == end - start
        )
    assert sum(end - start for _, start, end in found) <= num_bytes
    assert cold.cut_by in (None, "bytes")
    assert (cold.cut_by is None) == (len(found) == len(material.places))


def test_every_range_is_read_before_one_is_read_again(large):
    """Each level continues the cycle of the previous one."""
    material = Ranges(large, RecordSizes.fixed(100_000), random())
    parts = [material.random(False, limits(1_500_000)).pieces.places for _ in range(20)]
    material.close()
    every = len(material.places)
    assert every == len({place.item() for place in np.concatenate(parts)[:every]})


@settings(max_examples=examples(30))
@given(clients=st.integers(1, 12), direct=st.booleans(), num_bytes=st.integers(0, 20 << 20))
def test_parts_in_order_are_of_one_length_and_apart(large, clients, direct, num_bytes):
    """Each client has consecutive blocks of its own, all of them as many; together no more than
    allowed."""
    material = Ranges(large, RecordSizes.fixed(1000), random())
    try:
        pieces = material.sequential(direct, clients, limits(num_bytes)).pieces
    finally:
        material.close()
    assert pieces.in_order
    assert 0 == len(pieces.places) % clients
    assert len(pieces.places) == len({place.item() for place in pieces.places})
    assert len(pieces.places) << 20 <= num_bytes or not len(pieces.places)


def test_files_too_small_for_a_record_say_so(large):
    """One line that names the file and what to do."""
    with pytest.raises(CommandError, match="no record of 10000000 bytes; give --record-bytes"):
        Ranges(large, RecordSizes.fixed(10_000_000), random())


def test_whole_files_are_opened_for_the_first_time_by_the_test_of_opening(small):
    """What is opened has been read by no level before, each time others; and the known ones are
    none of them."""
    known = set(small[:50])
    material = WholeFiles(small, random(), known)
    first, second = material.opens(2), material.opens(2)
    names = [*first.pieces.targets, *second.pieces.targets]
    assert len(names) == len(set(names)) == 2 * (150 // 3 // 2)
    assert set() == known & set(map(os.fsdecode, names))
    read = material.random(False, limits(10**9)).pieces
    assert len(small) == len(set(read.targets)) == len(read.places)


@settings(max_examples=examples(30))
@given(clients=st.integers(1, 12), direct=st.booleans(), num_bytes=st.integers(0, 2_000_000))
def test_whole_files_have_their_own_lengths(small, clients, direct, num_bytes):
    """In an order of chance or in their own: a file's whole length, in whole pages for O_DIRECT, no
    more bytes than allowed."""
    material = WholeFiles(small, random())
    for cold in (
        material.random(direct, limits(num_bytes)),
        material.sequential(direct, clients, limits(num_bytes)),
    ):
        sizes = [
            os.stat(cold.pieces.targets[target]).st_size for target in cold.pieces.places["target"]
        ]
        lengths = cold.pieces.places["length"].tolist()
        assert [
            -(-size // PIECE_BYTES) * PIECE_BYTES if direct else size for size in sizes
        ] == lengths
        assert sum(lengths) <= num_bytes
        assert len(set(cold.pieces.places["target"].tolist())) == len(lengths)
    assert 0 == len(lengths) % clients


def test_files_in_order_are_neighbours(small):
    """Each client goes from a file to the next one of the list."""
    pieces = WholeFiles(small, random()).sequential(False, 4, limits(10**9)).pieces
    names = [os.fsdecode(pieces.targets[target]) for target in pieces.places["target"]]
    for part in np.array_split([small.index(name) for name in names], 4):
        assert [1] * (len(part) - 1) == ((part[1:] - part[:-1]) % len(small)).tolist()


def test_a_deadline_leaves_the_rest_out(small):
    """Files are emptied from the cache as long as there is time, and no others are read."""
    material = WholeFiles(small * 5, random())
    cold = material.random(False, Limits(10**9, monotonic_ns() - 1))
    assert "time" == cold.cut_by
    assert 0 < len(cold.pieces.places) < 1000


@pytest.mark.job
def test_what_is_to_be_read_is_not_in_the_cache(small, large):
    """Directly after it was chosen, the kernel holds nothing of it."""
    if not on_disk(small[0]):
        pytest.skip(
            "the page cache of this file system is not that of a disk; give pytest a --basetemp on"
            " a disk"
        )
    ranges = Ranges(large, RecordSizes.fixed(100_000), random())
    for material in (WholeFiles(small, random()), ranges):
        for cold in (
            material.random(False, limits(10**9)),
            material.sequential(False, 2, limits(10**9)),
        ):
            assert 0 == cold.before.resident_bytes
            assert 0 == residency(material.paths).resident_bytes
    ranges.close()


# ------------------------------------------------------------------------------------ scratch files


@settings(max_examples=10)
@given(num_bytes=st.integers(1 << 20, 4 << 20), record=st.none() | st.integers(1, 1 << 20))
def test_scratch_files_are_there_and_gone(tmp_path_factory, num_bytes, record):
    """No more than so many bytes, all of them allocated, incompressible; and nothing is left of
    them."""
    folder = tmp_path_factory.mktemp("scratch")
    assume(record is None or num_bytes / record < 50)
    with scratch_files(
        str(folder), num_bytes, record and RecordSizes.fixed(record), random()
    ) as paths:
        lengths = [Path(path).stat().st_size for path in paths]
        assert (
            [num_bytes] == lengths
            if record is None
            else [record] * (num_bytes // record) == lengths
        )
        assert len(set(Path(paths[0]).read_bytes()[:1000])) > min(lengths[0], 100) / 2
    assert [] == list(folder.iterdir())


def test_scratch_files_are_removed_when_something_fails(tmp_path):
    """Also where the block ends by an error."""
    with pytest.raises(ZeroDivisionError), scratch_files(str(tmp_path), 1 << 20, None, random()):
        1 / 0  # noqa: B018
    assert [] == list(tmp_path.iterdir())


@pytest.mark.system
def test_scratch_files_need_space(small_disk):
    """Checked before anything is written; on a full disk the files are removed, and an error is
    raised."""
    disk = small_disk(8 << 20, files=20)
    with (
        pytest.raises(CommandError, match="bytes are free, too few for --scratch"),
        scratch_files(str(disk), 8 << 20, None, random()),
    ):
        pass
    many = scratch_files(str(disk), 4 << 20, RecordSizes.fixed(1000), random())
    with pytest.raises(CommandError, match=r"cannot be written .*; give less --scratch"), many:
        pass
    assert [] == list(disk.iterdir())


# -------------------------------------------------------------------------------------- the numbers


def visit_of(rows, clients=2, start_ns=1000, idle_ns=None):
    """A visit whose rows are (start, end, bytes, cached bytes, waits, client), in ns after its
    begin."""
    outcomes = np.zeros(len(rows), OUTCOME)
    for row, (start, end, num_bytes, cached, waits, client) in zip(outcomes, rows, strict=True):
        began = start + start_ns
        values = (began, began, began, end + start_ns, num_bytes, 0, cached, waits, client)
        for name, value in zip(OUTCOME.names, values, strict=True):
            row[name] = value
    end = max((end for _, end, *_ in rows), default=0)
    return ClientRun(
        outcomes, start_ns, start_ns + (end if idle_ns is None else idle_ns), Ending.PLACES, clients
    )


def level(visit, kind=Kind.RANGES, in_order=False, harness_ns=0.0):
    cold = ColdPieces(Pieces(kind, (), places_of([0], 0, 0), in_order), None)
    return level_of(LevelRun("random", "buffered", cold, visit, None), harness_ns)


ROW = st.tuples(
    *(
        st.integers(0, 10**6),
        st.integers(1, 10**6),
        st.integers(0, 10**6),
        st.integers(-1, 10**6),
        st.integers(0, 2),
        st.integers(0, 1),
    )
).map(lambda row: (row[0], row[0] + row[1], *row[2:]))


@given(st.lists(ROW, min_size=1, max_size=150), st.integers(0, 10**15))
def test_a_shift_of_time_changes_nothing(rows, shift):
    """The numbers of a level are about durations."""
    assert level(visit_of(rows)) == level(visit_of(rows, start_ns=1000 + shift))


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300), st.floats(0, 1000))
def test_percentiles_rise_and_are_values(taken_ns, harness_ns):
    """p50 ≤ p95 ≤ p99 ≤ max, each one of the times less the harness's part; too few values, and
    there is none."""
    found = latency_of(np.array(taken_ns), harness_ns)
    shown = [
        value for value in (found.p50_s, found.p95_s, found.p99_s, found.max_s) if value is not None
    ]
    assert sorted(shown) == shown
    assert set(shown) <= {max(value - harness_ns, 1) / 1e9 for value in taken_ns}
    assert (found.p95_s is None, found.p99_s is None) == (len(taken_ns) < 20, len(taken_ns) < 100)
    expected = (
        np.percentile(np.maximum(np.array(taken_ns) - harness_ns, 1), 50, method="inverted_cdf")
        / 1e9
    )
    assert expected == found.p50_s


def test_a_rate_is_of_the_time_in_which_all_were_at_work():
    """Two clients read 100 bytes in 10 ns each time; one ends early, and what the other does alone
    is not counted."""
    rows = [
        (start, start + 10, 100, 0, 1, client)
        for client, many in ((0, 10), (1, 20))
        for start in range(0, 10 * many, 10)
    ]
    found = level(visit_of(rows, idle_ns=100))
    assert (20 / 100e-9, 2000 / 100e-9, 2.0) == pytest.approx(
        (found.operations_per_s, found.bytes_per_s, found.in_flight)
    )
    assert (30, 3000) == (found.operations, found.bytes)


def test_a_read_under_way_at_the_end_counts_by_its_part():
    """Half of it lay within."""
    found = level(visit_of([(0, 10, 100, 0, 1, 0), (0, 20, 100, 0, 1, 1)], idle_ns=10))
    assert 150 / 10e-9 == pytest.approx(found.bytes_per_s)


def test_reads_from_memory_are_told_apart():
    """By what the cache was asked, else by waiting for nothing. Neither in rates nor in latencies;
    their time is taken out."""
    slow = [(start, start + 10, 100, 0, 1, 0) for start in range(0, 100, 20)]
    fast = [(start + 10, start + 20, 100, 100, 0, 0) for start in range(0, 100, 20)]
    found = level(visit_of(slow + fast, clients=1, idle_ns=100))
    assert (5, "cachestat", 10e-9) == (
        found.cached_operations,
        found.cached_by,
        found.latency.max_s,
    )
    assert 1 / 10e-9 == pytest.approx(found.operations_per_s)
    unasked = [
        (start, end, num_bytes, -1, waits, client)
        for start, end, num_bytes, _, waits, client in slow + fast
    ]
    again = level(visit_of(unasked, clients=1, idle_ns=100))
    assert (5, "counters") == (again.cached_operations, again.cached_by)
    assert replace(found, cached_by="counters") == again


def test_a_place_all_in_memory_is_measured_as_such():
    """Where no read needed the storage the numbers are of memory, and the level says so."""
    found = level(visit_of([(0, 10, 100, 100, 0, 0), (10, 20, 100, 200, 0, 0)], clients=1))
    assert (2, 2) == (found.operations, found.cached_operations)
    assert 2 / 20e-9 == pytest.approx(found.operations_per_s)


def test_what_failed_is_counted_and_nothing_else():
    """A failed read is no read; where all failed there is no level, but a reason."""
    found = level(visit_of([(0, 10, 100, 0, 1, 0), (0, 10, -5, -1, 0, 1)]))
    assert (1, {"EIO": 1}) == (found.operations, found.failed)
    assert "every read failed: EIO" == level(visit_of([(0, 10, -5, -1, 0, 0)])).reason
    assert "the budget is too small for one record per client" == level(visit_of([])).reason


@given(st.integers(1, 256))
def test_clients_double(most):
    """1, 2, 4, ... and the number itself, each once."""
    found = clients_up_to(most)
    assert (1, most) == (found[0], found[-1])
    assert sorted(set(found)) == list(found)
    assert all(2 * low >= high for low, high in pairwise(found))


# ------------------------------------------------------------------------------------- whole probes


@pytest.mark.job(every=4)
@settings(max_examples=15)
@given(num_bytes=st.integers(1, 30 << 20), most=st.integers(1, 5), whole=st.booleans())
def test_the_budget_of_bytes_is_kept(large, small, num_bytes, most, whole):
    """All levels together read no more than was allowed; each level of the plan is there, or is
    missing with a reason."""
    material = (
        WholeFiles(small, random()) if whole else Ranges(large, RecordSizes.fixed(50_000), random())
    )
    plan = Plan(clients_up_to(most))
    told = []
    found = probe(material, Allowance(60.0, num_bytes), plan, told.append)
    material.close()
    assert found.bytes == sum(one.bytes for one in found.levels) <= num_bytes
    assert [*plan.steps()] == [(one.test, one.mode, one.clients) for one in told]
    assert sorted(map(id, told)) == sorted(map(id, (*found.levels, *found.missing)))
    assert all(one.reason for one in found.missing)
    for one in found.levels:
        assert one.operations >= 1
        assert one.in_flight <= one.clients + 1e-6
        assert one.latency.mean_s <= one.latency.max_s
        assert one.ended_by in ("time", "bytes", "places")


@pytest.mark.job
def test_without_time_nothing_is_measured(large):
    """A budget that is over before the first level gives reasons, no numbers."""
    material = Ranges(large, RecordSizes.fixed(50_000), random())
    found = probe(material, Allowance(1e-9, 1 << 30), Plan((1,), ("random",)))
    material.close()
    assert () == found.levels
    assert {"the time of the budget was over; give more with --seconds"} == {
        one.reason for one in found.missing
    }


@pytest.mark.job
def test_cold_reads_need_the_device(large):
    """Every byte of a random level was fetched for it, nothing came from memory, and O_DIRECT left
    nothing there."""
    if not on_disk(large[0]):
        pytest.skip(
            "the page cache of this file system is not that of a disk; give pytest a --basetemp on"
            " a disk"
        )
    material = Ranges(large, RecordSizes.fixed(40_960), random())
    found = probe(material, Allowance(60.0, 1 << 30), Plan((2,), ("random",)))
    material.close()
    buffered, direct = found.levels
    assert [0, 0] == [buffered.cached_operations, buffered.stayed_bytes]
    assert buffered.device_bytes >= buffered.bytes
    assert (direct.bytes, 0.0) == (direct.device_bytes, direct.kept_ratio)


@pytest.mark.system
def test_memory_is_said_to_be_memory(small_disk):
    """On tmpfs no read waits for anything."""
    disk = small_disk(16 << 20)
    (disk / "file").write_bytes(os.urandom(8 << 20))
    material = Ranges([str(disk / "file")], RecordSizes.fixed(4096), random())
    found = probe(material, Allowance(60.0, 1 << 20), Plan((1,), ("random",), ("buffered",)))
    material.close()
    (one,) = found.levels
    assert one.cached_operations == one.operations > 0


@pytest.mark.system(every=4)
def test_a_throttled_disk_gives_no_more_than_its_rule(tmp_path):
    """The rate stays below the rule, except for the first time slice of the throttle; and the
    device's counters agree."""
    rate, slice_s = 8_000_000, 0.1  # Linux, block/blk-throttle.c: DFL_THROTL_SLICE_HD
    with slow_storage.throttled_disk(tmp_path, 64 << 20) as disk:
        (disk.path / "file").write_bytes(os.urandom(24 << 20))
        os.sync()
        disk.throttle(rate)
        before = disk.read_bytes()
        probed = partial(probed_by_child, disk.path / "file", clients=2, join=disk.join)
        # nothing, if the machine stood still for so long
        found = probed(seconds=3) or probed(seconds=30)
        fetched = disk.read_bytes() - before
    assert found
    for one in found:
        assert one["bytes_per_s"] * one["seconds"] <= rate * (one["seconds"] + slice_s) * 1.1
        assert one["bytes"] <= rate * (one["seconds"] + one["latency"]["max_s"] + slice_s) * 1.1
    assert sum(one["bytes"] for one in found) <= fetched


PROGRAM = """
import json, sys
from dataclasses import asdict
import numpy as np
from ioprof.storage.probe import Allowance, Plan, Ranges, RecordSizes, probe
path, seconds, clients = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
material = Ranges([path], RecordSizes.fixed(65536), np.random.default_rng())
found = probe(material, Allowance(seconds, 1 << 30), Plan((clients,), ("random",)))
print(json.dumps([asdict(level) for level in found.levels]))
"""


def probed_by_child(path, seconds, clients, join):
    """Levels by a process that comes under a rule first."""
    line = [sys.executable, "-c", PROGRAM, str(path), str(seconds), str(clients)]
    done = subprocess.run(
        line, cwd=ROOT, preexec_fn=join, capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout)


@pytest.mark.system
def test_a_server_that_waits_is_found_to_wait(tmp_path):
    """5 ms for each read: no read is faster, and the server gave the bytes that the probe
    counts."""
    (tmp_path / "file").write_bytes(os.urandom(2 << 20))
    with fuse_server(tmp_path, read_ms=5) as served:
        material = Ranges([str(served.path / "file")], RecordSizes.fixed(65536), random())
        measured = partial(
            probe, material, Allowance(60.0, 1 << 30), Plan((1, 4), ("random",), ("buffered",))
        )
        before = served.counters()
        found = measured()
        after = served.counters()
        material.close()
    for one in found.levels:
        assert one.latency.p50_s >= 0.005
        assert one.operations_per_s <= one.clients / 0.005
        assert (0, None) == (one.cached_operations, one.device_bytes)
    assert after["bytes"] - before["bytes"] >= found.bytes
    assert {65536} >= {size for size in map(int, after["read_sizes"]) if size > PIECE_BYTES}


@pytest.mark.system
def test_a_server_that_lets_openings_wait_is_found_to_wait(tmp_path):
    """5 ms for each open: found by the test of opening, and as a part of reading whole files."""
    for number in range(200):
        (tmp_path / f"{number:03d}").write_bytes(bytes(100))
    with fuse_server(tmp_path, open_ms=5) as served:
        material, _ = find_read_targets(str(served.path), None, random())
        found = probe(
            material, Allowance(60.0, 1 << 30), Plan((2,), ("open", "random"), ("buffered",))
        )
    opens, reads = found.levels
    assert isinstance(opens, Level)
    assert opens.latency.p50_s >= 0.005
    assert reads.open_latency.p50_s >= 0.005
    assert reads.latency.p50_s >= reads.open_latency.p50_s


@pytest.mark.job
def test_facts_are_json(large):
    """What a probe found can be written down and read back."""
    material = Ranges(large, RecordSizes.fixed(1 << 20), random())
    found = probe(material, Allowance(60.0, 1 << 22), Plan((1,)))
    material.close()
    facts = json.loads(json.dumps(found.facts()))
    assert "ioprof.probe/1" == facts["schema"]
    assert [asdict(one) for one in found.levels] == facts["levels"]
    assert all(isinstance(one, Missing) for one in found.missing)
