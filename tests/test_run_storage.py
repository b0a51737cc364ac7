"""`ioprof run` on prepared storage: cache states, memory limits, multiples of a dataset, staging.
Ground truth: the kernel's books, and those of a server that is asked for every byte."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import fuse_server
import jobs
import polars as pl
import pytest
import slow_storage

from ioprof.cli import main
from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate, plan_verification
from ioprof.format.trace import Trace
from ioprof.jobs.dataset_multiple import multiple_of
from ioprof.jobs.staged.staging import Staging
from ioprof.loaders.scaling import Scale
from ioprof.storage import describe
from ioprof.storage.limits import group_parents
from ioprof.storage.lower_files import lower_files
from ioprof.storage.residency import evict, proactive_reclaim, residency

PAGE_BYTES = 4096
SMALL = ("--batch-size", 8, "--out", "run")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A synthetic ImageNet of 64 images, with the sizes of real ones."""
    tree = tmp_path_factory.mktemp("photos") / "tree"
    generate(tree, GenerateOptions(images=64, classes=4))
    return tree


@pytest.fixture(scope="module")
def datasets(photos):
    """The same images in each layout; small ones, so that decoding takes no time."""
    return {
        layout: convert(
            photos, photos.parent / layout, ConvertOptions(layout=layout, image="rgb256", workers=1)
        )
        for layout in ("files", "lmdb", "webdataset")
    }


def run(dataset, *arguments, cwd, code=0):
    """A run that ends so, as its trace and its output."""
    finished = jobs.ioprof("run", dataset, *SMALL, *arguments, cwd=cwd)
    assert code == finished.code, finished.err
    return Trace.load(cwd / "run"), finished


def read_for_batches(trace, dataset):
    """Reads and faults of the dataset to make batches; not those of libraries, for which a batch
    may wait, too."""
    files = trace.files.filter(pl.col("path").str.starts_with(f"{dataset.path.parent}/"))
    reads = trace.spans.filter(
        pl.col("kind").is_in(["read", "fault"]), pl.col("batch").is_not_null(), pl.col("bytes") > 0
    )
    return reads.join(files, on="file", how="semi")


def read_by_epoch(trace, dataset, steps):
    """Bytes read to make batches, by epoch and by where they came from."""
    sums = (
        read_for_batches(trace, dataset)
        .group_by(pl.col("batch") // steps, "source")
        .agg(pl.col("bytes").sum())
    )
    return {(epoch, source): size for epoch, source, size in sums.rows()}


# --------------------------------------------------------------------------------------- page cache


@pytest.mark.system(every=4)
@pytest.mark.parametrize("layout", ["files", "lmdb", "webdataset"])
def test_a_cold_run_reads_storage_and_a_warm_one_does_not(datasets, tmp_path, layout):
    """The state that is asked for is there at the start, by residency, and the job's own reads
    agree with it."""
    dataset = datasets[layout]
    cold, finished = run(dataset.path, "--cache", "cold", cwd=tmp_path)
    found = cold.run.cache
    if found.start.ratio:
        pytest.skip(f"the files cannot be evicted here: {found}")
    assert ("cold", 0.0) == (found.asked, found.start.ratio)
    assert found.reclaim or 0.5 < found.end.ratio
    assert dataset.bytes <= sum(read_by_epoch(cold, dataset, 8).values())
    report = jobs.whole_report(finished, tmp_path)
    assert "page cache asked: cold" in report
    assert "0.0% at the start" in report

    shutil.rmtree(tmp_path / "run")
    with slow_storage.in_memory(dataset.path):
        warm, _ = run(dataset.path, "--cache", "warm", cwd=tmp_path)
    assert ("warm", True) == (warm.run.cache.asked, warm.run.cache.start.ratio > 0.95)
    from_storage = [
        sum(
            size
            for (_, source), size in read_by_epoch(trace, dataset, 8).items()
            if source == "storage"
        )
        for trace in (cold, warm)
    ]
    assert from_storage[0] > 0
    assert from_storage[1] <= 0.02 * dataset.bytes


@pytest.mark.system(every=4)
@pytest.mark.parametrize("read", ["mmap", "pread"])
@pytest.mark.parametrize("scale", [0.5, 1, 2, 4])
def test_bytes_of_a_cold_lmdb_are_those_of_the_device(photos, tmp_path, read, scale):
    """However it is read and whatever the kernel reads ahead; the job is bound by the slow disk,
    and needs per sample what a sample has."""
    with slow_storage.throttled_disk(tmp_path, 256 << 20) as disk:
        window = Path("/sys/class/block", Path(disk.device).name, "queue/read_ahead_kb")
        window.write_text("2048")
        dataset = convert(photos, disk.path / "lmdb", ConvertOptions(layout="lmdb", workers=1))
        disk.throttle(6 << 20)
        before = disk.read_bytes()
        options = ("--dataset-scale", f"{scale}x", "--lmdb-read", read, "--epochs", 1, "--cache")
        finished = jobs.ioprof(
            "run", dataset.path, *SMALL, *options, "cold", cwd=tmp_path, preexec_fn=disk.join
        )
        assert 0 == finished.code, finished.err
        fetched = disk.read_bytes() - before
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    found, demand = summary["storage"]["bytes_from_storage"], summary["demand"]
    assert abs(found - fetched) <= 0.02 * fetched + (256 << 10)  # metadata of the file system
    assert "storage" == summary["verdict"]["bound_by"]
    per_sample = demand["bytes_per_s"] / demand["at_samples_per_s"]
    used = json.loads((tmp_path / "run/run.json").read_text())["dataset"]
    assert 0.98 <= per_sample / (used["bytes"] / used["records"]) <= 1.05


@pytest.mark.system(every=4)
def test_as_is_changes_nothing(datasets, tmp_path):
    """What was resident before is resident at the start, half of it or all."""
    paths = datasets["files"].data_files()
    evict(paths)
    with slow_storage.in_memory(*map(Path, paths[::2])):
        before = residency(paths).ratio
        trace, _ = run(datasets["files"].path, "--cache", "as-is", "--steps", 1, cwd=tmp_path)
    found = [trace.run.cache.before.ratio, trace.run.cache.start.ratio]
    assert 0.4 < before < 0.6
    assert [pytest.approx(before, abs=0.01)] * 2 == found


@pytest.mark.system(every=4)
def test_a_cold_run_on_a_file_system_in_memory_says_that_it_is_not(datasets, tmp_path, small_disk):
    """tmpfs holds its files in memory: the run goes on, and neither its output nor its report call
    it cold."""
    disk = small_disk(1 << 24)
    shutil.copytree(datasets["lmdb"].path, disk / "data")
    trace, finished = run(disk / "data", "--cache", "cold", "--steps", 1, cwd=tmp_path)
    assert (1.0, True) == (trace.run.cache.start.ratio, "the run is not cold" in finished.err)
    assert "100.0% at the start" in jobs.whole_report(finished, tmp_path)


@contextmanager
def on_loop_device(image, place):
    """An ext4 on a loop device that reads the file `image` through the page cache."""
    if reason := slow_storage.missing():
        pytest.skip(reason)
    with open(image, "wb") as stream:
        stream.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    place.mkdir()
    ended = subprocess.run(
        ["mount", "-o", "loop", image, place], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        pytest.skip(f"a loop device is refused: {ended.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.system(every=4)
def test_cold_is_cold_below_a_loop_device(datasets, tmp_path, small_disk):
    """The backing file is evicted too, and looked at; where it lies in memory the report calls that
    no storage."""
    with on_loop_device(tmp_path / "disk.img", tmp_path / "loop") as disk:
        shutil.copytree(datasets["lmdb"].path, disk / "data")
        os.sync()
        found = lower_files(describe(disk / "data"))
        assert ((str(tmp_path / "disk.img"),), ()) == (found.files, found.hidden)
        assert residency(found.files).ratio > 0
        trace, finished = run(disk / "data", "--cache", "cold", "--steps", 1, cwd=tmp_path)
        assert trace.run.cache.lower.ratio <= 0.01
        text = jobs.report_of(tmp_path / "run")
        assert "0.0% at the start of what the file system lies on" in text
    memory = small_disk(32 << 20)
    with on_loop_device(memory / "disk.img", tmp_path / "loop in memory") as disk:
        shutil.copytree(datasets["files"].path, disk / "data")
        os.sync()
        trace, finished = run(
            disk / "data", "--cache", "cold", "--steps", 1, "--force", cwd=tmp_path
        )
        assert trace.run.cache.lower.ratio > 0.01
        assert "stayed in memory; the run is not cold" in finished.err
        assert "storage in memory" in jobs.report_of(tmp_path / "run")


@pytest.mark.job(every=4)
def test_an_lmdb_is_read_by_reads_when_asked(datasets, tmp_path):
    """All values come by reads of the file, where through the map they come by faults of its
    pages."""
    dataset = datasets["lmdb"]
    trace, _ = run(dataset.path, "--lmdb-read", "pread", cwd=tmp_path)
    reads = read_for_batches(trace, dataset)
    assert "pread" == trace.run.config.lmdb_read
    assert ["read"] == reads["kind"].unique().to_list()
    assert dataset.bytes <= reads["bytes"].sum()


# ---------------------------------------------------------------------------------------- bad usage


@pytest.mark.job
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("DATA", "--cache", "hot"), "--cache hot: unknown; choose one of cold, warm, as-is"),
        (("DATA", "--memory-limit", "lots"), "--memory-limit 'lots': give bytes with a unit"),
        (("DATA", "--dataset-scale", "2"), "--dataset-scale '2': give a multiple above 0"),
        (("DATA", "--dataset-scale", "0.001x"), "is less than one of the 64 records"),
        (("DATA", "--stage-to", "nowhere"), "--stage-to nowhere: no such folder; make it first"),
        (
            ("DATA", "--stage-mode", "before"),
            "--stage-mode before says how to stage, and nothing is staged",
        ),
        (("DATA", "--keep-staged"), "--keep-staged says how to stage, and nothing is staged"),
        (
            ("DATA", "--stage-to", "tmp", "--stage-mode", "later"),
            "--stage-mode later: unknown; choose one of before, while-",
        ),
        (("DATA", "--lmdb-read", "mmpa"), "--lmdb-read mmpa: unknown; choose one of mmap, pread"),
        (
            ("--loader", "null", "--steps", "1", "--lmdb-read", "pread"),
            "is about --loader lmdb and raw, and this is null",
        ),
        (
            ("--loader", "null", "--steps", "1", "--cache", "cold"),
            "--cache cold is about a dataset's files",
        ),
        (
            ("--loader", "null", "--steps", "1", "--dataset-scale", "2x"),
            "--dataset-scale 2x is about a dataset",
        ),
        (
            ("--loader", "null", "--steps", "1", "--stage-to", "tmp"),
            "--stage-to tmp is about a dataset",
        ),
    ],
)
def test_bad_usage_is_one_line_before_any_work(
    datasets, tmp_path, monkeypatch, capsys, arguments, expected
):
    """The value as it was given, what it is about, and what to type; no run folder is begun."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    words = [str(datasets["lmdb"].path) if word == "DATA" else word for word in arguments]
    code = main(["run", *words, "--out", "run"])
    said = capsys.readouterr().err
    assert (2, True) == (code, expected in said), said
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------- memory


LIMIT = 512 << 20
RAW_SIDE = 1024  # records of 3 MiB: bytes count here, not records


@pytest.fixture(scope="module")
def large_disk(tmp_path_factory):
    """A disk of its own for datasets larger than memory."""
    if not list(group_parents()):
        pytest.skip("no cgroup that limits memory")
    folder = tmp_path_factory.mktemp("large")
    if shutil.disk_usage(folder).free < 12 * LIMIT:
        pytest.skip("a dataset of twice the memory limit finds no room here")
    with slow_storage.throttled_disk(folder, 5 * LIMIT) as disk:
        yield disk


@pytest.mark.system(every=4)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("layout", ["files", "lmdb"])
def test_beyond_memory_the_second_epoch_reads_again(photos, large_disk, tmp_path, layout):
    """Twice the limit: the second epoch comes from storage again. Half the limit: it does not,
    unless the kernel takes idle pages, which it does not do each time. In both, what the run says
    that the device read is what the kernel says, to one per cent; of files, what the reads needed
    is, too."""
    count = LIMIT // 2 // (3 * RAW_SIDE**2)
    raw = ConvertOptions(layout=layout, image="rgb256", encoding="raw", size=RAW_SIDE, limit=count)
    half = convert(enough(photos, tmp_path / "tree", count), large_disk.path / layout, raw)
    twice = multiple_of(half, Scale.parse("4x"))
    tries = 1 if proactive_reclaim() is None else 3
    stays = any(
        epochs_under_limit(half, large_disk, tmp_path)[1] < 0.1 * half.bytes for _ in range(tries)
    )
    needed = epochs_under_limit(twice, large_disk, tmp_path)
    shutil.rmtree(twice.path)
    shutil.rmtree(half.path)

    assert stays
    assert needed[1] > 0.6 * 4 * half.bytes


def enough(tree, folder, count):
    """As many images as that, by links under further names."""
    shutil.copytree(tree, folder)
    found = sorted(folder.glob("*/*.JPEG"))
    for number in range(len(found), count):
        path = found[number % len(found)]
        path.with_name(f"{path.stem}_{number}.JPEG").hardlink_to(path)
    return folder


def epochs_under_limit(dataset, disk, cwd):
    """Bytes that the reads of each of two epochs needed from storage, held against the device's own
    books."""
    before = device_bytes(disk)
    arguments = (
        "--memory-limit",
        f"{LIMIT >> 20}M",
        "--epochs",
        2,
        "--workers",
        1,
        "--batch-size",
        4,
        "--out",
        "run",
    )
    finished = jobs.ioprof("run", dataset.path, *arguments, cwd=cwd)
    read = device_bytes(disk) - before
    assert 0 == finished.code, finished.err
    trace = Trace.load(cwd / "run")
    shutil.rmtree(cwd / "run")
    assert ("cold", 0.0) == (trace.run.cache.asked, trace.run.cache.start.ratio)
    assert trace.run.limit.peak_bytes <= LIMIT
    series = trace.counters.filter(
        pl.col("name").cast(pl.String) == f"disk.{Path(disk.device).name}.read_bytes"
    ).sort("time_ns")["value"]
    assert read == pytest.approx(series[-1] - series[0], rel=0.01)
    steps = -(-dataset.records // 4)
    found = read_by_epoch(trace, dataset, steps)
    needed = [found.get((epoch, "storage"), 0) for epoch in (0, 1)]
    if dataset.layout == "files":
        assert read == pytest.approx(sum(needed), rel=0.01)
    return needed


def device_bytes(disk):
    return 512 * int(
        Path("/sys/class/block", Path(disk.device).name, "stat").read_text().split()[2]
    )


@pytest.mark.job
def test_a_job_that_finds_no_room_says_why(datasets, tmp_path):
    """The kernel kills; the error names the limit and what to give instead, and nothing is left of
    the group."""
    finished = jobs.ioprof(
        "run", datasets["lmdb"].path, "--memory-limit", "40M", *SMALL, cwd=tmp_path
    )
    if "memory cannot be limited here" in finished.err:
        pytest.skip(finished.err)
    assert (1, True) == (finished.code, "give a larger --memory-limit" in finished.err), (
        finished.err
    )
    limit = Trace.load(tmp_path / "run").run.limit
    assert limit.killed_for_memory > 0
    assert not Path(limit.name).exists()


@pytest.mark.job(every=4)
def test_a_killed_ioprof_leaves_no_group_for_long(datasets, tmp_path):
    """SIGKILL leaves the group; the next run that makes one removes it."""
    parents = [parent for _, parent in group_parents()]
    if not parents or os.geteuid():
        pytest.skip("no cgroup that limits memory can be made here")
    arguments = ("run", datasets["lmdb"].path, "--memory-limit", "1G", "--steps", 2000, *SMALL)
    with jobs.running(*arguments, cwd=tmp_path, steps=2) as process:
        group = next(
            folder
            for folder in parents[0].glob("ioprof-*")
            if folder.name.startswith(f"ioprof-{process.pid}-")
        )
        ranks = {
            who: pid for who, pid in jobs.recorded_processes(tmp_path).items() if who[0] != "other"
        }
        assert set(ranks.values()) == set(map(int, (group / "cgroup.procs").read_text().split()))
        process.kill()
        process.communicate()
    jobs.wait_until(lambda: not any(map(jobs.alive, ranks.values())), seconds=20)
    jobs.wait_until(lambda: not (group / "cgroup.procs").read_text())
    shutil.rmtree(tmp_path / "run")

    run(datasets["lmdb"].path, "--memory-limit", "1G", "--steps", 1, cwd=tmp_path)
    assert not group.exists()


@pytest.mark.job(every=4)
def test_warm_under_a_limit_is_charged_to_the_job(datasets, tmp_path):
    """Pages belong to who reads them first: they are read under the limit, or it would bound
    nothing. Again where the kernel takes idle pages, and took these before they were counted."""
    for _ in range(3):
        finished = jobs.ioprof(
            "run",
            datasets["lmdb"].path,
            "--memory-limit",
            "1G",
            "--cache",
            "warm",
            *SMALL,
            cwd=tmp_path,
        )
        if "memory cannot be limited here" in finished.err:
            pytest.skip(finished.err)
        found = Trace.load(tmp_path / "run").run
        shutil.rmtree(tmp_path / "run")
        are_there, charged_bytes = found.cache.start.ratio, found.limit.page_cache_bytes
        if not found.cache.reclaim or (
            0.9 < are_there and 0.5 * datasets["lmdb"].bytes < charged_bytes
        ):
            break
    assert 0.9 < are_there
    assert 0.5 * datasets["lmdb"].bytes < charged_bytes


# -------------------------------------------------------------------------------------------- scale


@pytest.mark.job(every=4)
def test_a_run_on_a_multiple_is_a_run_on_that_dataset(datasets, tmp_path):
    """Made beside the dataset, said in run.json and in the report; the epoch has that many steps.
    The page cache, of which nobody asked, is not looked at: a million files are not opened for a
    report that nobody wants."""
    trace, finished = run(datasets["lmdb"].path, "--dataset-scale", "50%", cwd=tmp_path)
    assert (32, 0.5, str(datasets["lmdb"].path) + "-0.5x") == tuple(
        getattr(trace.run.dataset, key) for key in ("records", "scale", "path")
    )
    assert 4 == trace.run.config.steps
    report = jobs.whole_report(finished, tmp_path)
    assert "scale 0.5x of lmdb" in report
    assert (None, None, None) == (trace.run.cache, trace.run.limit, trace.run.stage)
    assert "page cache asked" not in report


# ------------------------------------------------------------------------------------------ staging


@pytest.fixture
def served(datasets, request):
    """A dataset on a server that takes 5 ms for each read and keeps nothing in the page cache, and
    the server's books."""
    with fuse_server.fuse_server(
        datasets["files"].path.parent, read_ms=5, direct_io=True
    ) as mounted:
        yield mounted


def bytes_served(mounted, action):
    before = mounted.counters()["bytes"]
    result = action()
    return mounted.counters()["bytes"] - before, result


def where(trace, served, local):
    """Bytes of images read to make batches, by epoch, and whether from the copy."""
    reads = trace.spans.filter(
        pl.col("kind") == "read", pl.col("batch").is_not_null(), pl.col("bytes") > 0
    )
    paths = trace.files.select("file", "path").filter(
        pl.col("path").str.contains(r"\.(?:JPEG|mdb|tar)$")
    )
    paths = paths.with_columns(
        copy=pl.col("path").str.starts_with(str(local)),
        shared=pl.col("path").str.starts_with(str(served)),
    )
    found = reads.join(paths.filter(pl.col("copy") | pl.col("shared")), on="file")
    return {
        (epoch, copy): size
        for epoch, copy, size in found.group_by(pl.col("batch") // 8, "copy")
        .agg(pl.col("bytes").sum())
        .rows()
    }


@pytest.mark.system(every=4)
def test_staged_before_the_shared_path_is_read_once(datasets, served, tmp_path):
    """By the server's own books: the dataset once, and a sample; every batch comes from the copy,
    which goes with the run."""
    (tmp_path / "local").mkdir()
    arguments = ("--epochs", 3, "--stage-to", tmp_path / "local")
    size, (trace, finished) = bytes_served(
        served, lambda: run(served.path / "files", *arguments, cwd=tmp_path)
    )

    dataset, stage = datasets["files"], trace.run.stage
    index_bytes = dataset.index_path.stat().st_size
    sample = stage.shared_read.records * dataset.record_bytes_quantiles["max"]
    assert dataset.bytes + index_bytes <= size <= dataset.bytes + 3 * index_bytes + sample
    assert {(epoch, True): dataset.bytes for epoch in range(3)} == where(
        trace, served.path, tmp_path / "local"
    )
    assert (stage.copied_bytes, []) == (dataset.bytes + index_bytes, os.listdir(tmp_path / "local"))
    spans = trace.spans.filter(kind="stage")
    assert stage.copied_bytes == spans["bytes"].sum()
    assert spans["end_ns"].max() <= trace.spans.filter(kind="step")["start_ns"].min()
    assert 0.005 <= stage.shared_read.mean_s
    report = jobs.whole_report(finished, tmp_path)
    assert "before training in" in report
    assert "break-even" in report


@pytest.mark.system(every=4)
@pytest.mark.parametrize("layout", ["files", "lmdb", "webdataset"])
def test_staged_while_training_the_shared_path_is_read_in_the_first_epoch_only(
    datasets, served, tmp_path, layout
):
    """By the server's own books each byte is asked for about once, in three epochs; later epochs
    come from the copy alone."""
    (tmp_path / "local").mkdir()
    arguments = ("--epochs", 3, "--stage-to", tmp_path / "local", "--stage-mode", "while-training")
    size, (trace, finished) = bytes_served(
        served, lambda: run(served.path / layout, *arguments, cwd=tmp_path)
    )

    dataset = datasets[layout]
    found = where(trace, served.path, tmp_path / "local")
    shared = [found.get((epoch, False), 0) for epoch in range(3)]
    assert dataset.bytes <= shared[0] + shared[1]
    # a worker may begin the second epoch while another has not ended the first,
    assert shared[1] < 0.3 * dataset.bytes
    # which then finds those images in the copy
    assert found.get((0, True), 0) < 0.3 * dataset.bytes
    assert 0 == shared[2]
    assert found[2, True] >= dataset.bytes
    # blocks and searches of a small dataset
    assert size < 1.6 * sum(os.stat(path).st_size for path in dataset.data_files())
    assert 0.99 < trace.run.stage.filled_ratio <= 1
    assert [] == os.listdir(tmp_path / "local")
    assert "written to" in jobs.whole_report(finished, tmp_path)


@pytest.mark.job(every=4)
@pytest.mark.parametrize("layout", ["files", "lmdb", "webdataset"])
def test_what_was_filled_and_is_kept_is_a_dataset(datasets, tmp_path, layout):
    """Also where the job ended within its first epoch: what no worker has read is copied at the
    end, and the digest compared."""
    (tmp_path / "local").mkdir()
    arguments = (
        "--steps",
        3,
        "--stage-to",
        "local",
        "--stage-mode",
        "while-training",
        "--keep-staged",
    )
    trace, _ = run(datasets[layout].path, *arguments, cwd=tmp_path)
    # which reads more than it is asked for
    assert trace.run.stage.filled_ratio < 0.9 or layout == "webdataset"
    assert [] == plan_verification(tmp_path / "local" / layout, deep=True, workers=1).run().problems
    assert [layout] == os.listdir(tmp_path / "local")
    if layout != "files":
        return
    shutil.rmtree(tmp_path / "run")
    again, finished = run(datasets[layout].path, "--steps", 1, "--stage-to", "local", cwd=tmp_path)
    assert (True, 0, [layout]) == (
        again.run.stage.reused,
        again.run.stage.copied_bytes,
        os.listdir(tmp_path / "local"),
    )
    assert "were in" in jobs.whole_report(finished, tmp_path)


@pytest.mark.system(every=4)
def test_an_interrupted_staging_goes_on_with_the_next_run(datasets, served, tmp_path):
    """Ctrl-C while files are copied: exit code 130, no dataset in the folder, and the next run
    copies the rest."""
    large = multiple_of(datasets["files"], Scale.parse("40x"))
    (tmp_path / "local").mkdir()
    served.slow_down(read_ms=50)  # so that the copy is never complete before the signal comes
    arguments = ("run", served.path / "files-40x", "--steps", 1, "--stage-to", "local", *SMALL)
    with jobs.started(*arguments, cwd=tmp_path) as process:
        jobs.wait_until(
            lambda: (
                any(path.stat().st_size for path in tmp_path.glob("local/.*/journal"))
                or process.poll() is not None
            )
        )
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert (130, False) == (process.returncode, "Traceback" in err), err
    assert [] == list((tmp_path / "local").glob("*/dataset.json"))
    shutil.rmtree(tmp_path / "run", ignore_errors=True)

    served.slow_down(read_ms=0)
    trace, _ = run(served.path / "files-40x", "--steps", 1, "--stage-to", "local", cwd=tmp_path)
    stage = trace.run.stage
    assert (
        0
        < stage.copied_bytes
        < stage.bytes
        == sum(os.stat(path).st_size for path in large.data_files())
    )


@pytest.mark.job(every=4)
def test_a_run_does_not_remove_what_somebody_keeps(datasets, tmp_path):
    """A copy that `ioprof stage` made serves a run, and stays."""
    (tmp_path / "local").mkdir()
    Staging(datasets["lmdb"], tmp_path / "local", keep=True).run()
    trace, _ = run(datasets["lmdb"].path, "--steps", 1, "--stage-to", "local", cwd=tmp_path)
    assert (True, False, True) == (
        trace.run.stage.reused,
        trace.run.stage.removed,
        (tmp_path / "local" / "lmdb").is_dir(),
    )


@pytest.mark.job(every=4)
def test_a_killed_filling_is_no_dataset_and_no_harm(datasets, tmp_path):
    """SIGKILL while workers fill the copy: nothing looks whole, and the next run fills a new
    one."""
    (tmp_path / "local").mkdir()
    fill = ("--stage-to", "local", "--stage-mode", "while-training")
    with jobs.running(
        "run", datasets["lmdb"].path, "--steps", 2000, *fill, *SMALL, cwd=tmp_path, steps=2
    ) as process:
        ranks = jobs.recorded_processes(tmp_path)
        process.kill()
        process.communicate()
    jobs.wait_until(lambda: not any(map(jobs.alive, ranks.values())), seconds=20)
    assert [] == list((tmp_path / "local").rglob("dataset.json"))
    shutil.rmtree(tmp_path / "run")

    trace, _ = run(datasets["lmdb"].path, "--epochs", 2, *fill, cwd=tmp_path)
    assert (True, []) == (trace.run.stage.filled_ratio > 0.9, os.listdir(tmp_path / "local"))


@pytest.mark.job(every=4)
def test_auto_takes_the_folder_that_the_scheduler_names(datasets, tmp_path):
    """Found by name, and said."""
    (tmp_path / "job").mkdir()
    environment = {
        **os.environ,
        "SLURM_TMPDIR": str(tmp_path / "job"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = [
        sys.executable,
        "-m",
        "ioprof",
        "run",
        str(datasets["lmdb"].path),
        "--stage-to",
        "auto",
        "--steps",
        "1",
        *map(str, SMALL),
    ]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert 0 == ended.returncode, ended.stderr
    stage = json.loads((tmp_path / "run" / "run.json").read_text())["stage"]
    assert (str(tmp_path / "job" / "lmdb"), "SLURM_TMPDIR (Slurm's folder of the job)") == (
        stage["to"],
        stage["found_by"],
    )
