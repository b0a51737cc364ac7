"""A real cluster file system behind a slow network: its speed, its removal at the end, and the
results of ioprof for data on it."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import cluster_volume as module
import jobs
import numpy as np
import polars as pl
import pytest
import slow_storage
from cluster_volume import Volume, cluster_volume
from made_datasets import made
from quiet_machine import comparing_times, on_a_quiet_machine

import ioprof

pytestmark = [
    pytest.mark.system(every=3),
    pytest.mark.skipif(module.missing() is not None, reason=str(module.missing())),
    pytest.mark.timeout(600),
]

MB = 10**6


@pytest.fixture(scope="module")
def shared_volume() -> Iterator[Volume]:
    """One volume for all tests of this file, because starting it takes seconds."""
    with cluster_volume() as mounted:
        yield mounted


@pytest.fixture
def volume(shared_volume: Volume) -> Iterator[Volume]:
    """The empty volume without throttling."""
    yield shared_volume
    shared_volume.shape(rate_mbit=0, delay_ms=0)
    for entry in shared_volume.path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def test_it_is_a_file_system_over_a_network(volume: Volume) -> None:
    """Bytes are read back as written, over the network; in the mount table its type is fuse and its
    source a server."""
    data = np.random.default_rng(0).bytes(3 * MB)
    (volume.path / "data").write_bytes(data)
    slow_storage.evict(volume.path)
    assert data == (volume.path / "data").read_bytes()
    assert volume.counters()["bytes_from_client"] > len(data)
    (line,) = (
        line
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if f" {volume.path} " in line
    )
    assert ["fuse", r"mfs\04310.77.0.1:9421"] == line.split(" - ")[1].split()[:2]


@pytest.mark.system(every=4)
def test_the_network_passes_no_more_than_its_rate(volume: Volume) -> None:
    """An uncached file takes at least its size divided by the rate, and is transferred for each
    read."""
    path = volume.path / "data"
    path.write_bytes(np.random.default_rng(0).bytes(4 * MB))
    slow_storage.evict(volume.path)
    volume.shape(rate_mbit=40)
    before, began = volume.counters()["bytes_from_servers"], time.monotonic()
    assert 4 * MB == len(path.read_bytes())
    assert time.monotonic() - began >= 0.95 * 4 * MB * 8 / 40e6
    assert volume.counters()["bytes_from_servers"] - before > 4 * MB


def test_each_look_at_a_file_waits_for_a_round_trip(volume: Volume) -> None:
    """n calls of stat for uncached names take at least n round trips."""
    for number in range(40):
        (volume.path / str(number)).touch()
    volume.shape(delay_ms=5)
    began = time.monotonic()
    for number in range(40):
        (volume.path / str(number)).stat()
    assert time.monotonic() - began >= 40 * 2 * 0.005


def test_nothing_stays_when_it_is_killed() -> None:
    """SIGKILL of the process that started the servers: they end, mount and files are removed, and
    the test fails."""
    before = set(running_servers())
    with pytest.raises(AssertionError), cluster_volume() as mounted:  # noqa: PT012 - raised at the end of the block
        assert len(set(running_servers()) - before) >= 3
        os.kill(mounted._servers.pid, signal.SIGKILL)
    jobs.wait_until(lambda: not set(running_servers()) - before, 30)
    assert str(mounted.path) not in Path("/proc/self/mountinfo").read_text()
    assert not mounted.path.parent.exists()


def running_servers() -> Iterator[int]:
    """Processes of MooseFS that run, zombies aside."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, state = (folder / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:  # it has ended
            continue
        if name.startswith("mfs") and state.split()[0] != "Z":
            yield int(folder.name)


def test_packages_that_are_not_there_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The text is the reason of a skip."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install moosefs-master moosefs-chunkserver moosefs-client iproute2" in str(
        module.missing()
    )


# --------------------------------------------------------------------------- what ioprof says of it


@pytest.mark.parametrize("layout", ["files", "lmdb"])
@on_a_quiet_machine
def test_a_run_that_waits_for_the_network_says_storage(
    layout: str, volume: Volume, sample: Path, tmp_path: Path
) -> None:
    """At 10 Mbit/s the job waits for storage; the source of bytes is unknown on FUSE, and reported
    as unknown."""
    data = volume.path / tmp_path.name
    volume.shape(rate_mbit=0, delay_ms=0)  # which the first attempt has limited
    made(sample, data, layout=layout, image="original", limit=64)
    slow_storage.evict(volume.path)
    volume.shape(rate_mbit=10, delay_ms=1)
    before = volume.counters()["bytes_from_servers"]
    arguments = (
        "--workers",
        2,
        "--steps",
        4,
        "--batch-size",
        16,
        "--device",
        "emulated:a100",
        "--out",
        "run",
        "--json",
    )
    finished = jobs.ioprof("run", data, *arguments, cwd=tmp_path)
    summary = json.loads(finished.out)
    storage = summary["storage"]
    with comparing_times():
        assert "storage" == summary["verdict"]["bound_by"], finished.err
    assert volume.counters()["bytes_from_servers"] - before > 0.9 * storage["bytes"]
    if layout == "files":
        trace = ioprof.load(tmp_path / "run").trace
        below = trace.files.filter(pl.col("path").str.starts_with(f"{data}/train/"))
        reads = trace.spans.filter(pl.col("kind") == "read", pl.col("bytes") > 0).join(
            below, on="file"
        )
        assert ["unknown"] == reads["source"].unique().to_list()


def test_a_cold_start_fetches_all_of_it_and_a_warm_one_nothing(
    volume: Volume, sample: Path, tmp_path: Path
) -> None:
    """By the transferred bytes; residency agrees for this host, and the report says that it applies
    only to this host."""
    dataset = made(sample, volume.path / "data", layout="lmdb", image="original", limit=64)
    fetched = {}
    for cache in ("cold", "warm"):
        arguments = ("--cache", cache, "--workers", 2, "--batch-size", 16, "--out", cache)
        with slow_storage.in_memory(dataset.path) if cache == "warm" else nullcontext():
            before = volume.counters()["bytes_from_servers"]
            finished = jobs.ioprof("run", dataset.path, *arguments, cwd=tmp_path)
        assert 0 == finished.code, finished.err
        fetched[cache] = volume.counters()["bytes_from_servers"] - before
        ratio = ioprof.load(tmp_path / cache).run.cache.start.ratio
        assert (cache == "cold", cache == "warm") == (ratio == 0, ratio > 0.95)
        assert "servers" in jobs.ioprof("report", "--full", cache, cwd=tmp_path).out
    assert fetched["cold"] > dataset.bytes
    assert fetched["warm"] < 0.1 * dataset.bytes


@pytest.mark.system(every=4)
def test_inspect_names_the_server_and_claims_nothing(volume: Volume, tmp_path: Path) -> None:
    """A FUSE mount whose source is a server is shared storage, and the source of the bytes of its
    reads is unknown."""
    (volume.path / "data").write_bytes(bytes(MB))
    finished = jobs.ioprof("inspect", volume.path / "data", "--json", cwd=tmp_path)
    storage = json.loads(finished.out)["storage"]
    expected = (str(volume.path), "fuse", "mfs#10.77.0.1:9421", False, False)
    assert expected == tuple(
        storage[key]
        for key in ("mount_point", "file_system", "source", "answers_nowait", "counts_blocks")
    ), finished.err
    assert "shared" == storage["kind"]


def test_a_probe_finds_the_rate_of_the_network(volume: Volume, tmp_path: Path) -> None:
    """No level exceeds the rate of the network, each read takes at least its transfer time, and all
    bytes were transferred."""
    size, rate = MB, 80 * MB / 8
    (volume.path / "data").mkdir()
    for number in range(16):
        (volume.path / "data" / str(number)).write_bytes(np.random.default_rng(number).bytes(size))
    volume.shape(rate_mbit=80, delay_ms=5)
    before = volume.counters()["bytes_from_servers"]
    options = ("--clients", 2, "--seconds", 10, "--max-bytes", "64M", "--json")
    finished = jobs.ioprof("probe", volume.path / "data", *options, cwd=tmp_path)
    passed = volume.counters()["bytes_from_servers"] - before
    found = json.loads(finished.out)
    levels = [level for level in found["levels"] if level["bytes"]]
    assert levels, finished.err
    assert [] == [level for level in levels if level["bytes_per_s"] > 1.1 * rate]
    assert [] == [level for level in levels if level["latency"]["p50_s"] < 0.9 * size / rate]
    assert passed >= 0.95 * found["bytes"] > 0
