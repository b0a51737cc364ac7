"""Bytes that devices delivered compared with those that a job read: real devices, any counters, and
runs without them."""

import dataclasses
import json
import os
import socket
from functools import cache
from pathlib import Path
from typing import Any, Final

import mounted
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readme import DATA
from slow_storage import evict
from strategies import examples
from timeline import timeline
from told import summarise

from ioprof.analysis.charge.devices import deliveries, stalls
from ioprof.format.run_record import (
    CaptureRecord,
    Delivery,
    RunRecord,
    SampledSeries,
    Stalls,
    Summary,
)
from ioprof.format.schema import COUNTER_COLUMNS, FILE_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.ingest.counters import read_counters
from ioprof.instrument.samplers.sampler import Sampler
from ioprof.recording.used_storage import device_of, with_storage
from ioprof.report.texts.statements import statements
from ioprof.storage import describe

HOST: Final = socket.gethostname()
READS: Final = """
    step          0000011111
    wait          000..111..
    fetch         000..111..
    read 100B     ##...##...
"""


def reading(paths: list[str], host: str = HOST, **run: Any) -> Trace:
    """Two reads of 100 bytes, of these files in turn."""
    trace = timeline(READS, **run)
    number = (pl.col("kind") == "read").cum_sum() % len(paths)
    spans = trace.spans.with_columns(
        host=pl.lit(host, pl.Categorical),
        file=pl.when(pl.col("kind") == "read").then(number.cast(pl.Int64)),
    )
    rows = {
        "file": range(len(paths)),
        "path": paths,
        **{name: None for name in FILE_COLUMNS if name not in ("file", "path")},
    }
    return Trace(trace.run, spans, pl.DataFrame(rows, schema=table_schema(FILE_COLUMNS)))


def counters(rows: list[tuple[int, str, str, float]]) -> pl.DataFrame:
    """Samples of hosts: time in s, host, name, value."""
    found = [(time * 10**9, host, None, None, name, value, "?") for time, host, name, value in rows]
    return pl.DataFrame(found, schema=table_schema(COUNTER_COLUMNS), orient="row")


def place(**values: Any) -> dict[str, Any]:
    """An entry of `RunRecord.storage`."""
    found = {
        "host": HOST,
        "device": "vda",
        "file_system": "ext4",
        "mount_point": "/data",
        "kind": "local",
        "reason": None,
    }
    return found | {"delivered": ["disk.vda.read_bytes"]} | values


def on_one_device(table: pl.DataFrame, **values: Any) -> Trace:
    """Two files on vda, which the run says of itself."""
    trace = reading(["/data/a", "/data/b"], storage=[place(**values)])
    device, kind = values.get("device", "vda"), values.get("file_system", "ext4")
    return Trace(
        trace.run,
        trace.spans,
        trace.files.with_columns(device=pl.lit(device), file_system=pl.lit(kind)),
        table,
    )


# ------------------------------------------------------------------------------------ a real device


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_what_a_device_delivered_is_what_was_cold(tmp_path: Path) -> None:
    """A cold file on a disk of its own is read once: the disk delivered that file, and the job read
    it."""
    if reason := mounted.missing("ext4"):
        pytest.skip(reason)
    point, spool, size = tmp_path / "disk", tmp_path / "spool", 8 << 20
    spool.mkdir()
    with mounted.mounted_image(mounted.made_image(tmp_path / "disk.img", "ext4"), point) as device:
        (point / "file").write_bytes(os.urandom(size))
        evict(point)
        with Sampler(str(spool), period_s=3600.0) as sampler:
            while not sampler.facts()["samples"]:
                pass
            assert size == len((point / "file").read_bytes())
        trace = reading([str(point / "file"), "/proc/self/status"])
        spans = trace.spans.with_columns(
            bytes=pl.when(pl.col("file") == 0).then(size).otherwise("bytes").cast(pl.Int64)
        )
        found = with_storage(Trace(trace.run, spans, trace.files, read_counters(spool).table))
    name = Path(device).name
    assert [name, None] == found.files.sort("file")["device"].to_list()
    assert ["ext4", "proc"] == found.files.sort("file")["file_system"].to_list()
    (delivery,) = deliveries(found)
    assert (name, "ext4", str(point), size, False) == (
        delivery.device,
        delivery.file_system,
        delivery.mount_point,
        delivery.asked_bytes,
        delivery.is_at_most,
    )
    assert delivery.delivered_bytes is not None
    assert size <= delivery.delivered_bytes < size + (1 << 20)  # inodes and bitmaps besides
    assert [HOST] == [stalled.host for stalled in stalls(found)]
    assert found.run.to_json()


def test_files_are_described_where_they_lie(tmp_path: Path) -> None:
    """A link counts as what it leads to, a file that is gone as its folder, a folder that is gone
    as unknown."""
    (tmp_path / "link").symlink_to("/proc/self/status")
    paths = [str(tmp_path / "link"), str(tmp_path / "gone"), "/nowhere/at/all", "relative"]
    read = [reading([path]) for path in paths]
    found = [with_storage(trace).files["file_system"].to_list() for trace in read]
    assert [["proc"], [describe(tmp_path).file_system], [None], [None]] == found
    assert device_of(describe(Path("/proc"))) is None


def test_another_host_describes_nothing(tmp_path: Path) -> None:
    """A spool that is read elsewhere: the paths there are not the job's."""
    trace = reading([str(tmp_path / "file")], host="elsewhere")
    assert with_storage(trace) is trace


# ------------------------------------------------------------------------------------- any counters


def test_what_was_delivered_is_the_growth_of_the_series_of_that_host() -> None:
    """From the first sample to the last, of the host that read, of all its disks."""
    rows = [
        (0, HOST, "disk.vda.read_bytes", 1000.0),
        (1, HOST, "disk.vda.read_bytes", 1000.0),
        (9, HOST, "disk.vda.read_bytes", 1350.0),
        (0, HOST, "disk.vdb.read_bytes", 5.0),
        (9, HOST, "disk.vdb.read_bytes", 55.0),
        (9, "other", "disk.vda.read_bytes", 9e9),
        (0, HOST, "pressure.io.some", 3.0),
        (9, HOST, "pressure.io.some", 4.5),
        (0, HOST, "pressure.io.full", 1.0),
        (9, HOST, "pressure.io.full", 1.25),
    ]
    trace = on_one_device(counters(rows), delivered=["disk.vda.read_bytes", "disk.vdb.read_bytes"])
    expected = Delivery("vda", HOST, "ext4", "/data", "local", 200, 400, False, None)
    assert (expected,) == deliveries(trace)
    assert (Stalls(HOST, 1.5, 0.25, 9.0),) == stalls(trace)
    said = {fact.label: fact.text for fact in statements(summarise(trace))}
    assert (
        "vda (ext4 at /data, local): 200 B asked for, 400 B delivered to all programs"
        == said["device"]
    )
    assert (
        f"some tasks stalled 1.50 s, all tasks 250 ms of 9.00 s (PSI, all programs of {HOST})"
        == said["I/O pressure"]
    )


def test_an_upper_bound_is_called_one() -> None:
    """Lustre without root: requests by classes of size bound what was fetched; an exact count,
    where there is one, goes first."""
    bound = [
        (0, HOST, "lustre.s.fetched_bytes_most", 0.0),
        (9, HOST, "lustre.s.fetched_bytes_most", 4096.0),
    ]
    exact = [(0, HOST, "lustre.s.fetched_bytes", 0.0), (9, HOST, "lustre.s.fetched_bytes", 4000.0)]
    values = {
        "device": "s",
        "file_system": "lustre",
        "kind": "shared",
        "delivered": ["lustre.s.fetched_bytes"],
    }
    (found,) = deliveries(on_one_device(counters(bound), **values))
    assert (4096, True) == (found.delivered_bytes, found.is_at_most)
    (found,) = deliveries(on_one_device(counters(bound + exact), **values))
    assert (4000, False) == (found.delivered_bytes, found.is_at_most)
    said = {
        fact.label: fact.text
        for fact in statements(summarise(on_one_device(counters(bound), **values)))
    }
    assert "at most 4.10 kB delivered" in said["device"]


def test_what_has_no_counters_is_null_with_a_reason() -> None:
    """Never 0: a FUSE mount counts nothing, and a disk may not have been sampled."""
    (found,) = deliveries(
        on_one_device(
            counters([]), delivered=[], reason="fuse.x has no counters that every user may read"
        )
    )
    assert (None, "fuse.x has no counters that every user may read") == (
        found.delivered_bytes,
        found.reason,
    )
    trace = on_one_device(counters([]))
    assert [(None, "its counters were not sampled")] == [
        (entry.delivered_bytes, entry.reason) for entry in deliveries(trace)
    ]
    assert "not known: its counters were not sampled" in str(statements(summarise(trace)))


@cache
def base() -> Summary:
    """Any summary, to show what was found in."""
    return summarise(reading(["/data/a"]))


def test_why_lustre_has_no_counters_is_what_the_sampler_said() -> None:
    """The file that is root's, and what an administrator would type."""
    notes = [
        "Lustre: llite/stats is not sampled",
        "Lustre: osc/stats is not sampled: readable by root only",
        7,
    ]
    values = {
        "device": "s",
        "file_system": "lustre",
        "kind": "shared",
        "delivered": ["lustre.s.fetched_bytes"],
    }
    trace = on_one_device(counters([]), **values)
    capture = CaptureRecord(sampled=SampledSeries.of({"notes": notes}))
    (found,) = deliveries(dataclasses.replace(trace, run=trace.run.replace(capture=capture)))
    assert notes[1] == found.reason


hostile = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*place(), "x"]), inner, max_size=8)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(40))
@given(hostile, st.floats())
def test_nothing_that_a_run_folder_may_hold_stops_the_summary(value: Any, count: float) -> None:
    """A run folder comes from anywhere: an entry that is not as ioprof writes it is passed over,
    and so is a count that is none."""
    trace = on_one_device(
        counters([(0, HOST, "disk.vda.read_bytes", 1.0), (1, HOST, "disk.vda.read_bytes", count)])
    )
    for entry in (value, [value], [place(**value)] if isinstance(value, dict) else None):
        told = Trace(
            RunRecord.of({**trace.run.to_dict(), "storage": entry}),
            trace.spans,
            trace.files,
            trace.counters,
        )
        summary = base()
        storage = summary.storage.replace(devices=deliveries(told), stalls=stalls(told))
        assert json.loads(summary.replace(storage=storage).to_json())
        assert statements(summary.replace(storage=storage))


@pytest.mark.parametrize("name", ["files", "lmdb", "lmdb-rgb256"])
def test_a_run_that_did_not_say_has_the_report_that_it_had(name: str) -> None:
    """Recorded before: no line of devices or of stalls, also where disks and stalls were
    sampled."""
    trace = Trace.load(DATA / name)
    silent = trace.run.replace(storage=())
    rows = [
        (time, HOST, series, 1.0 + time)
        for time in (0, 9)
        for series in ("disk.vda.read_bytes", "pressure.io.some")
    ]
    summary = summarise(dataclasses.replace(trace, run=silent, counters=counters(rows)))
    assert ((), ()) == (summary.storage.devices, summary.storage.stalls)
    assert {"device", "I/O pressure"}.isdisjoint(fact.label for fact in statements(summary))
