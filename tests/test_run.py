"""`ioprof run`: real ranks, real workers, real kills."""

import json
import os
import signal
from functools import cache

import jobs
import lmdb
import polars as pl
import pynvml
import pytest
import slow_storage
from preload import needs_library
from quiet_machine import comparing_times, on_a_quiet_machine

from ioprof.analysis.charge.blame import blame
from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate
from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace
from ioprof.recording.host_facts import gpus
from ioprof.train.models import default_model, make_model

TABLES = {f"{name}.parquet" for name in ("blocks", "counters", "files", "spans", "stacks", "steps")}
RUN_FILES = {*TABLES, "job.log", "report.html", "run.json", "summary.json"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A synthetic ImageNet of 80 images, with the sizes of real ones."""
    tree = tmp_path_factory.mktemp("photos") / "tree"
    generate(tree, GenerateOptions(images=80, classes=4))
    return tree


@pytest.fixture(scope="module")
def datasets(photos):
    """The same images as files and as LMDB."""
    for layout in ("files", "lmdb"):
        convert(photos, photos.parent / layout, ConvertOptions(layout=layout, image="original"))
    return photos.parent


def spans_of(run):
    return Trace.load(run).spans


@pytest.fixture(scope="module")
def two_epochs(datasets, tmp_path_factory):
    """By layout, the folder and the output of a run whose dataset was not in the page cache when it
    began."""

    @cache
    def run(layout):
        folder = tmp_path_factory.mktemp(layout)
        slow_storage.evict(datasets / layout)
        arguments = ("--ranks", 2, "--epochs", 2, "--batch-size", 8, "--seed", 5, "--out", "run")
        finished = jobs.ioprof("run", datasets / layout, *arguments, cwd=folder)
        assert 0 == finished.code, finished.err
        return folder / "run", finished

    return run


@pytest.mark.system(every=4)
@pytest.mark.parametrize("layout", ["files", "lmdb"])
def test_causes_of_every_step_sum_to_its_wall_time(datasets, two_epochs, layout):
    """Law 1 on a real run: integer nanoseconds, every rank, every step; and every batch can be
    followed from read to step."""
    folder, finished = two_epochs(layout)
    assert "emulated" in finished.out
    upper_bound = f"next: ioprof run {datasets / layout} --loader null --device emulated:a100"
    assert (
        f"{upper_bound} --ranks 2 --batch-size 8 --steps 10 --seed 5 --out run-null" in finished.err
    )
    assert {path.name for path in folder.iterdir()} == RUN_FILES
    steps = pl.read_parquet(folder / "steps.parquet")
    total = steps.select(pl.sum_horizontal(f"{cause}_ns" for cause in CAUSES)).to_series()
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == total.to_list()
    assert [(rank, step) for rank in range(2) for step in range(10)] == steps.sort(
        "rank", "step"
    ).select("rank", "step").rows()
    spans = spans_of(folder)
    read_kind = "read" if layout == "files" else "fault"
    for kind in (
        read_kind,
        "decode",
        "transform",
        "collate",
        "fetch",
        "wait",
        "deliver",
        "h2d",
        "compute",
    ):
        # Python reads its libraries for none
        of_batches = spans.filter(pl.col("kind") == kind, pl.col("batch").is_not_null())
        found = of_batches.select("rank", "batch").unique().sort("rank", "batch").rows()
        assert [(rank, batch) for rank in range(2) for batch in range(10)] == found, kind


@pytest.mark.job(every=4)
@pytest.mark.parametrize("layout", ["files", "lmdb"])
def test_batches_of_threads_are_followed_from_read_to_step(datasets, layout, tmp_path):
    """Two threads of the rank make all batches, each read, decoded and transformed in the thread
    that fetches it."""
    arguments = (
        "--loader",
        "threads",
        "--workers",
        2,
        "--epochs",
        2,
        "--batch-size",
        8,
        "--out",
        "run",
    )
    finished = jobs.ioprof("run", datasets / layout, *arguments, cwd=tmp_path)
    assert 0 == finished.code, finished.err
    spans = spans_of(tmp_path / "run").filter(pl.col("batch").is_not_null())
    of_batch = {
        kind: spans.filter(pl.col("kind") == kind)
        for kind in ("wait", "fetch", "read", "decode", "transform")
    }
    made = of_batch["fetch"].select("batch", "pid", "tid")
    assert 20 == len(made) == made["batch"].n_unique()
    assert (1, 2) == (made["pid"].n_unique(), made["tid"].n_unique())
    assert set(made["pid"]) == set(of_batch["wait"]["pid"])
    assert set(made["tid"]).isdisjoint(of_batch["wait"]["tid"])
    for kind, found in of_batch.items():
        assert set(made["batch"]) == set(found["batch"]), kind
        if kind != "wait":
            assert set(made.rows()) == set(found.select("batch", "pid", "tid").rows()), kind
    assert set(made["batch"]) == set(spans.filter(pl.col("kind") == "step")["batch"])


def named(trace, kind, name):
    """The spans of that kind, in the order of their starts, of files whose paths match."""
    files = trace.files.filter(pl.col("path").str.contains(name))
    return trace.spans.filter(kind=kind).join(files, on="file").sort("start_ns")


@pytest.mark.system(every=4)
@needs_library
def test_each_byte_of_a_file_is_told_once_in_each_epoch(datasets, two_epochs):
    """By the capture library or by the loader, never by both: the reads of a file add up to its
    size, and none overlaps another."""
    trace = Trace.load(two_epochs("files")[0])

    reads = named(trace, "read", r"\.JPEG$")
    sizes = {str(path): 2 * path.stat().st_size for path in (datasets / "files").rglob("*.JPEG")}
    assert 80 == len(sizes)
    assert sizes == dict(reads.group_by("path").agg(pl.col("bytes").sum()).rows())
    after = pl.col("start_ns").shift(-1).over("pid", "path")
    assert 0 == len(reads.filter(pl.col("end_ns") > after))


@pytest.mark.system(every=4)
@needs_library
def test_each_byte_of_a_record_is_told_once_in_each_epoch(datasets, two_epochs):
    """By the loader or by the kernel's faults, and never by both; LMDB itself reads no more than
    the first pages."""
    trace = Trace.load(two_epochs("lmdb")[0])

    (path,) = (datasets / "lmdb").rglob("data.mdb")
    with (
        lmdb.open(str(path.parent), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        values = sum(len(value) for _, value in transaction.cursor())
    faults = named(trace, "fault", r"data\.mdb$")
    # the loader knows the record, the kernel the page
    own = faults.filter(pl.col("offset").is_null())
    assert (160, 2 * values) == (len(own), own["bytes"].sum())
    after = pl.col("start_ns").shift(-1).over("pid", "tid")
    assert 0 == len(faults.filter(pl.col("end_ns") > after))
    reads = named(trace, "read", r"data\.mdb$")
    assert reads.select((pl.col("offset") + pl.col("bytes")).max()).item() <= 2 * 4096


@pytest.mark.job
def test_both_layouts_deliver_the_same_samples_in_the_same_order(datasets):
    """One seed gives one order and one augmentation, whatever the layout and the number of
    workers."""
    from ioprof.format.dataset import Dataset
    from ioprof.loaders import make_loader
    from ioprof.loaders.base import LoaderOptions

    def batches(layout, workers):
        options = LoaderOptions(7, 3, rank=1, num_ranks=2, workers=workers, seed=5)
        loader = make_loader(layout, Dataset.load(datasets / layout), options)
        return [
            (batch.number, batch.images.numpy().tobytes(), batch.labels.tolist())
            for batch in loader
        ]

    expected = batches("files", 0)

    assert expected == batches("files", 2)
    assert expected == batches("lmdb", 0)
    assert expected == batches("lmdb", 1)


@on_a_quiet_machine
def test_the_null_loader_needs_no_dataset_and_waits_for_nothing(tmp_path):
    """The null loader is the upper bound: nothing is read or made, and no step waits for it."""
    finished = jobs.ioprof(
        "run",
        "--loader",
        "null",
        "--steps",
        10,
        "--batch-size",
        16,
        "--out",
        "run",
        "--json",
        cwd=tmp_path,
    )

    assert 0 == finished.code, finished.err
    seconds = {
        entry["cause"]: entry["seconds"] for entry in json.loads(finished.out)["steps"]["causes"]
    }
    assert [0, 0, 0, 0, 0] == [
        seconds[cause] for cause in ("storage", "page_cache", "decode", "transform", "collate")
    ]
    with comparing_times():
        assert seconds["loader"] + seconds["delivery"] < 0.1 * seconds["compute"]
    run = Trace.load(tmp_path / "run").run
    assert (0, "resnet50") == (run.config.workers, run.device.model)
    assert 0 <= run.hosts[0].others_cpu_ratio <= 1


@pytest.mark.job(every=4)
def test_a_real_model_on_the_cpu_exchanges_gradients(datasets, tmp_path):
    """`--device cpu` computes and exchanges for real: nothing is copied, nothing is emulated."""
    arguments = (
        "--device",
        "cpu",
        "--ranks",
        2,
        "--steps",
        4,
        "--batch-size",
        4,
        "--out",
        "run",
        "--json",
    )
    finished = jobs.ioprof("run", datasets / "lmdb", *arguments, cwd=tmp_path)

    assert 0 == finished.code, finished.err
    spans = spans_of(tmp_path / "run")
    assert {(0, 0), (0, 3), (1, 0), (1, 3)} <= set(
        spans.filter(kind="comm").select("rank", "step").rows()
    )
    assert 0 == len(spans.filter(kind="h2d"))
    assert "emulated" not in finished.out
    assert "small_cnn" == Trace.load(tmp_path / "run").run.device.model


def test_each_kind_of_device_trains_the_model_that_the_run_names():
    """ResNet-50 has the parameters that its authors count; whatever a CPU or a GPU trains bears the
    name in run.json."""
    names = {device: default_model(device) for device in ("cpu", "cuda", "emulated:a100")}
    num_parameters = {
        device: sum(parameter.numel() for parameter in make_model(name, 1000).parameters())
        for device, name in names.items()
    }

    assert {"cpu": "small_cnn", "cuda": "resnet50", "emulated:a100": "resnet50"} == names
    assert {25_557_032} == {num_parameters["cuda"], num_parameters["emulated:a100"]}
    assert num_parameters["cpu"] < 200_000


def test_a_gpu_that_does_not_answer_is_no_reason_to_fail(monkeypatch):
    """Every call to the vendor's library can fail, not only the first: a device can fall off the
    bus."""
    # so that the next call finds a library that was not initialised
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)

    assert [] == gpus()


@on_a_quiet_machine
def test_one_worker_that_decodes_large_images_is_named(datasets, tmp_path):
    """With one worker and slow decoding the verdict is decode, and the advice to decode only what
    is used."""
    arguments = (
        "--workers",
        1,
        "--steps",
        8,
        "--batch-size",
        16,
        "--decode",
        "pillow",
        "--out",
        "run",
        "--json",
    )
    with slow_storage.in_memory(datasets / "files"):
        finished = jobs.ioprof("run", datasets / "files", *arguments, cwd=tmp_path)

    with comparing_times():
        verdict = json.loads(finished.out)["verdict"]
        assert "decode" == verdict["bound_by"], finished.err
        assert any(
            "--decode roi instead of pillow" in advice["action"] for advice in verdict["findings"]
        )


@pytest.mark.system
@pytest.mark.skipif(slow_storage.missing() is not None, reason=str(slow_storage.missing()))
# Behind a page fault the kernel reads ahead: a part of the neighbouring LMDB records is in the page
# cache when its turn comes.
@pytest.mark.parametrize(("layout", "from_storage"), [("files", 0.9), ("lmdb", 0.5)])
@on_a_quiet_machine
def test_storage_held_to_a_crawl_is_named(photos, tmp_path, layout, from_storage):
    """On a disk held to 2 MB/s the verdict is storage, and the dataset's bytes are said to come
    from it."""
    with slow_storage.throttled_disk(tmp_path) as disk:
        convert(photos, disk.path / "data", ConvertOptions(layout=layout, image="original"))
        slow_storage.evict(disk.path)
        disk.throttle(2 << 20)
        arguments = ("--workers", 2, "--steps", 4, "--batch-size", 16, "--out", "run", "--json")
        finished = jobs.ioprof(
            "run", disk.path / "data", *arguments, cwd=tmp_path, preexec_fn=disk.join
        )
        disk.throttle(0)

    summary = json.loads(finished.out)
    with comparing_times():
        assert "storage" == summary["verdict"]["bound_by"], finished.err
    trace = Trace.load(tmp_path / "run")
    of_the_disk = trace.files.filter(pl.col("path").str.starts_with(str(disk.path)))["file"]
    read = trace.spans.filter(
        pl.col("kind").is_in(["read", "fault"]), pl.col("file").is_in(of_the_disk.implode())
    )
    assert read.filter(source="storage")["bytes"].sum() > from_storage * read["bytes"].sum() > 0


@pytest.mark.job(every=4)
def test_a_killed_worker_leaves_what_it_recorded(datasets, tmp_path):
    """SIGKILL of a worker: the job fails in one line, the spans before the kill are there, the
    report names the worker."""
    arguments = (
        "run",
        datasets / "files",
        "--ranks",
        2,
        "--steps",
        2000,
        "--batch-size",
        4,
        "--out",
        "run",
    )
    with jobs.running(*arguments, cwd=tmp_path, steps=5) as process:
        pid = jobs.recorded_processes(tmp_path)["worker", 1, 0]
        os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=120)

    assert 1 == process.returncode
    assert f"lost a loader worker: pid {pid} was killed by SIGKILL" in err
    assert "Traceback" not in out + err
    trace = Trace.load(tmp_path / "run")
    killed = next(entry for entry in trace.run.processes if entry.pid == pid)
    assert (False, True) == (bool(killed.closed), killed.spans > 0)
    assert len(trace.spans.filter(pid=pid, kind="decode")) > 0
    assert str(pid) in out
    assert "failed" == trace.run.status
    host = trace.run.hosts[0]
    assert (None, True) == (host.others_cpu_ratio, "killed" in host.others_cpu_reason)


@pytest.mark.job(every=4)
def test_a_killed_rank_leaves_what_it_recorded(datasets, tmp_path):
    """SIGKILL of a rank: all other processes end, the rank's spans before the kill are there, the
    report says what is missing."""
    arguments = (
        "run",
        datasets / "lmdb",
        "--ranks",
        2,
        "--steps",
        2000,
        "--batch-size",
        4,
        "--out",
        "run",
    )
    with jobs.running(*arguments, cwd=tmp_path, steps=5) as process:
        processes = jobs.recorded_processes(tmp_path)
        os.kill(processes["rank", 1, -1], signal.SIGKILL)
        out, err = process.communicate(timeout=120)

    assert (1, True) == (process.returncode, "rank 1 was killed by SIGKILL" in err), err
    jobs.wait_until(lambda: not any(map(jobs.alive, processes.values())), seconds=10)
    trace = Trace.load(tmp_path / "run")
    assert len(trace.spans.filter(rank=1, kind="step")) >= 4
    assert "rank 1: was killed by SIGKILL" in out
    assert str(processes["rank", 1, -1]) in jobs.report_of(tmp_path / "run")
    steps = blame(trace)
    total = steps.select(pl.sum_horizontal(f"{cause}_ns" for cause in CAUSES)).to_series()
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == total.to_list()


@pytest.mark.job(every=4)
def test_no_process_outlives_a_killed_ioprof(datasets, tmp_path):
    """SIGKILL of ioprof itself: launcher, ranks and workers end, and the folder is no run."""
    arguments = (
        "run",
        datasets / "lmdb",
        "--ranks",
        2,
        "--steps",
        2000,
        "--batch-size",
        4,
        "--out",
        "run",
    )
    with jobs.running(*arguments, cwd=tmp_path, steps=5) as process:
        processes = jobs.recorded_processes(tmp_path)
        process.kill()
        process.communicate()

    jobs.wait_until(lambda: not any(map(jobs.alive, processes.values())), seconds=20)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.job(every=4)
def test_ctrl_c_ends_all_ranks_and_leaves_a_readable_run(datasets, tmp_path):
    """SIGINT: exit code 130, no process left, a report of the steps that were made."""
    arguments = (
        "run",
        datasets / "files",
        "--ranks",
        2,
        "--steps",
        2000,
        "--batch-size",
        4,
        "--out",
        "run",
    )
    with jobs.running(*arguments, cwd=tmp_path, steps=5) as process:
        processes = jobs.recorded_processes(tmp_path)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)

    assert 130 == process.returncode, err
    jobs.wait_until(lambda: not any(map(jobs.alive, processes.values())), seconds=10)
    trace = Trace.load(tmp_path / "run")
    assert ("interrupted", ()) == (trace.run.status, trace.run.failures)
    assert all(entry.closed for entry in trace.run.processes)
    assert len(trace.spans.filter(kind="step")) >= 8
    assert "interrupted" in out
