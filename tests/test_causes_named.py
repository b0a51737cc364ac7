"""What a verdict names besides its cause: where in a step Python ran, which file was slow, the
first epoch; and its advice."""

from typing import Any, Final

import polars as pl
import pytest
from faults.agreement import contradictions
from pipeline_simulator import Pipeline, with_epochs
from timeline import timeline
from told import summarise

from ioprof.analysis import summary as summary_module
from ioprof.analysis.answer.details import PLACES, Details
from ioprof.analysis.charge.blame import charges
from ioprof.analysis.charge.sent_views import batch_bytes
from ioprof.analysis.reads.storage_bytes import with_doubt
from ioprof.format.run_record import CauseDetail, CpuEvidence, Doubt, PartCode, Verdict
from ioprof.format.schema import SENT
from ioprof.format.trace import Trace
from ioprof.model.summary import with_gains
from ioprof.report.run import Run
from ioprof.report.texts.headline import headline

MS: Final = 1_000_000
CPU: Final[dict[str, Any]] = {
    "config": {
        "device": "cpu",
        "loader": "torch DataLoader",
        "workers": 1,
        "batch_size": 4,
        "prefetch": 2,
    }
}


def on_cpu(trace: Trace, spans: pl.DataFrame | None = None, **config: Any) -> Trace:
    """The trace of a script that trains on the CPU."""
    settings = trace.run.config.replace(device="cpu", loader="torch DataLoader", **config)
    return Trace(
        trace.run.replace(config=settings), trace.spans if spans is None else spans, trace.files
    )


@pytest.mark.parametrize(
    ("compute", "before", "after", "where"),
    [
        ("......000.", 40, 0, ", most of it before the forward pass"),
        ("..000.....", 0, 40, ", most of it after the computation"),
        ("....000...", 20, 20, "of the steps"),
    ],
)
def test_python_before_and_after_the_forward_pass_is_told_apart(
    compute: str, before: int, after: int, where: str
) -> None:
    """It runs between the batch and the computation, or between the computation and the next
    wait."""
    trace = timeline(
        f"step 0000000000\nwait 00.......1\nfetch w0 00\ncompute main {compute}", **CPU
    )
    places = dict(charges(trace).details.of_cause("host", 100, trace))
    assert (before, after) == tuple(places.get((place, ""), 0) for place in PLACES)
    assert where in summarise(trace).verdict.text


def test_the_place_of_python_is_no_name() -> None:
    """A report still says that nothing explains it."""
    verdict = summarise(
        timeline("step 0000000000\nwait 0.........\nfetch w0 0\ncompute main .......000\n", **CPU)
    ).verdict
    assert "host" == verdict.bound_by
    assert verdict.doubts
    assert "ioprof.span" in verdict.findings[0].action


def test_a_job_on_the_cpu_has_no_accelerators() -> None:
    """Neither in its headline nor in its verdict, also where no optimizer said what it computes
    on."""
    drawing = (
        "step 0000000000\nwait 00000.....\nfetch w0 00000\ndecode w0 #####\ncompute main .....00000"
    )
    for device in ("cpu", None):
        summary = summarise(timeline(drawing, config={**CPU["config"], "device": device}))
        assert "Mostly waiting for batches (50.0%: decode), then compute (50.0%)." == headline(
            summary
        )
        assert "The model computed (on the CPU) for 50.0%" in summary.verdict.text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_headline_names_compute_first_where_it_is_most(device: str) -> None:
    """And then what is the bound, with its share."""
    drawing = (
        "step 00000000000000000000\nwait 000.................\nfetch w0 000\ndecode w0 ###\ncompute"
        " ...00000000000000000"
    )
    summary = summarise(timeline(drawing, config={**CPU["config"], "device": device}))
    assert "decode" == summary.verdict.bound_by
    assert "Mostly compute (85.0%), then waiting for batches (15.0%: decode)." == headline(summary)


def test_other_large_causes_are_advised_on() -> None:
    """After the bound: the first advice of each that takes a tenth of the time, with its own
    cause."""
    drawing = (
        "step 0000000000\nwait 00000.....\nfetch w0 00000\ndecode w0 #####\ncheckpoint"
        " .....000..\ncompute ........00"
    )
    verdict = summarise(timeline(drawing, **CPU)).verdict
    assert "decode" == verdict.bound_by
    assert "checkpoint" == [each.cause for each in verdict.findings if each.cause][-1]


@pytest.mark.parametrize(("megabytes", "is_unsure"), [(0.9, False), (2.0, False), (4.0, True)])
def test_bytes_without_a_time_are_a_doubt_where_they_may_be_the_bound(
    megabytes: float, is_unsure: bool
) -> None:
    """Of a job that computes for 95 % of its 10 s: at 5 MB/s, 2 MB take 4 % of that, 4 MB 8 %."""
    summary = summarise(timeline("step 00000000000000000000\ncompute 0000000000000000000.", **CPU))
    causes = tuple(
        entry.replace(seconds=None if entry.share is None else 10 * entry.share)
        for entry in summary.steps.causes
    )
    counts = {
        "storage_bytes_kernel": int(megabytes * 1e6),
        "mapped_bytes_untimed": int(megabytes * 1e6),
        "mapped_bytes_imports": 0,
    }
    found = with_doubt(
        summary.verdict, summary.capture.replace(**counts), summary.steps.replace(causes=causes)
    )
    assert ("compute", is_unsure) == (found.bound_by, Doubt.UNTIMED in found.doubts)


@pytest.mark.parametrize(
    ("host", "computed", "is_unsure"), [(0.05, 0.3, False), (0.05, 0.15, True), (0.25, 0.3, True)]
)
def test_a_validation_that_a_device_computes_for_is_the_bound_for_certain(
    host: float, computed: float, is_unsure: bool
) -> None:
    """It takes 50 % of the time; what the device computes in it waits for no file, nor does the
    device beside it."""
    shares = {"compute": 0.5 - host, "host": host, "validation": 0.5}
    details = {
        "validation": (CauseDetail("compute", 10 * computed, computed, PartCode.CAUSE, "compute"),)
    }
    found = summarise(timeline("step 00\ncompute 00"))
    steps = found.steps.replace(
        causes=tuple(
            each.replace(
                seconds=10 * shares.get(each.cause, 0.0), details=details.get(each.cause, ())
            )
            for each in found.steps.causes
        )
    )
    counts = {
        "storage_bytes_kernel": 40 * 10**6,
        "mapped_bytes_untimed": 40 * 10**6,
        "mapped_bytes_imports": 0,
    }
    verdict = found.verdict.replace(bound_by="validation", doubts=())
    told = with_doubt(verdict, found.capture.replace(**counts), steps, device="cuda")
    assert is_unsure is (Doubt.UNTIMED in told.doubts)


@pytest.mark.parametrize(("ratio", "is_said"), [(0.02, False), (0.13, True)])
def test_a_job_that_computes_says_where_ranks_wait_for_cores(
    ratio: float, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What workers compute takes cores from a model on the CPU."""
    monkeypatch.setattr(
        summary_module, "cpu_evidence", lambda trace: CpuEvidence(rank_run_delay_ratio=ratio)
    )
    drawing = (
        "step 00000000000000000000\nwait 0...................\nfetch w0 0\ndecode w0 #\ncompute"
        " main .0000000000000000000"
    )
    verdict = summarise(timeline(drawing, **CPU)).verdict
    assert "compute" == verdict.bound_by
    assert is_said is ("waited for a core for 13%" in verdict.text)


@pytest.mark.parametrize(
    ("late", "code", "larger"),
    [((0, 1), "equal_ranks", None), ((0, 0), "late_rank", 4.0), ((1, 1), "late_rank", None)],
)
def test_ranks_that_are_late_in_turn_are_not_one_slow_rank(
    late: tuple[int, int], code: str, larger: float | None
) -> None:
    """Of two ranks one computes for 8 of 10 units of a step, the other for 2; which one changes
    from step to step, or does not. Rank 0 has batches of 40 bytes, rank 1 of 10."""
    rows = {f"{kind} r{rank}": "" for rank in (0, 1) for kind in ("step", "compute main", "comm")}
    for step in range(12):
        for rank in (0, 1):
            long = 8 if late[step % 2] == rank else 2
            rows[f"step r{rank}"] += f"{step:x}" * 10
            rows[f"compute main r{rank}"] += f"{step:x}" * long + "." * (10 - long)
            rows[f"comm r{rank}"] += "." * long + f"{step:x}" * (10 - long)
    drawing = "\n".join(f"{kind} {row}" for kind, row in rows.items())
    drawing += "\ndeliver r0 40B name=batch 0\ndeliver r1 10B name=batch 0"
    trace = timeline(drawing, config={"device": "cpu"})
    is_sent = pl.col("name").cast(pl.String) == SENT
    offset = pl.when(is_sent).then("bytes").otherwise("offset")
    verdict = summarise(Trace(trace.run, trace.spans.with_columns(offset=offset))).verdict
    assert "straggler" == verdict.bound_by
    assert code == verdict.findings[0].code
    assert larger == verdict.findings[0].facts.get("larger")


def test_bytes_read_tell_whose_batches_are_larger() -> None:
    """Where no worker sends them: of a loop that makes its batches itself."""
    trace = timeline(
        "step r0 00001111\nread r0 100B 0.......\nread r0 300B ....1...\n"
        "step r1 00001111\nread r1 50B 0.......\nread r1 50B ..#....."
    )
    assert {0: 200.0, 1: 50.0} == batch_bytes(trace)


def test_a_headline_says_what_the_verdict_says() -> None:
    """Of which epochs it is."""
    drawing = (
        "step 0000000000\nwait 00000.....\nfetch w0 00000\ndecode w0 #####\ncompute .....00000"
    )
    summary = summarise(timeline(drawing, config={**CPU["config"], "device": "cuda"}))
    later = summary.replace(verdict=summary.verdict.replace(first_epoch="storage"))
    text = "Mostly waiting for batches (50.0%: decode), then compute (50.0%)"
    assert f"{text}." == headline(summary)
    assert f"{text}; after the first epoch decode." == headline(later)


def rare_slow_batches(every: int, prefetch: int) -> Verdict:
    """Of batches of which one takes 400 ms and the others 1 ms, in a loop that takes 60 ms for
    each."""
    fetch = [(400 if number % every == 0 else 1) * MS for number in range(10 * every)]
    run = Run.of(
        on_cpu(
            Pipeline(fetch, [60 * MS] * len(fetch), 1, prefetch).trace(),
            prefetch=prefetch,
            workers=1,
        )
    )
    assert [] == contradictions(with_gains(run))
    return with_gains(run).summary.verdict


def test_rare_slow_batches_want_a_longer_queue() -> None:
    """Where the workers keep up on average: 8 batches ahead cover the 400 ms, and the replay shows
    that it helps."""
    verdict = rare_slow_batches(every=12, prefetch=1)
    assert "decode" == verdict.bound_by
    first = verdict.findings[0]
    assert ("prefetch", 8, 1) == (first.code, first.facts["prefetch"], first.facts["now"])
    assert first.gain is not None
    assert first.gain > 1.2
    assert "prefetch" != rare_slow_batches(every=4, prefetch=1).findings[0].code


def test_batches_that_are_on_their_way_are_too_large() -> None:
    """What the loop does itself is no reason: it waits meanwhile."""
    trace = timeline("step 0000000000\nwait 00000000..\nfetch w0 0\ncompute main ........00", **CPU)
    verdict = summarise(trace).verdict
    assert "delivery" == verdict.bound_by
    assert "send_less" == verdict.findings[0].code


def reading(took_ms: list[float], files: list[int], sizes: int = 100_000) -> Trace:
    """A loop whose worker reads one of several files for each batch, from storage."""
    trace = Pipeline([int(each * MS) for each in took_ms], [MS] * len(took_ms), 1).trace("read")
    of_batch = pl.DataFrame({"batch": range(len(files)), "of": files})
    is_read = pl.col("kind") == "read"
    spans = trace.spans.join(of_batch, on="batch", how="left").with_columns(
        bytes=pl.when(is_read).then(sizes),
        source=pl.when(is_read).then(pl.lit("storage", dtype=trace.spans["source"].dtype)),
        file=pl.when(is_read).then("of").cast(trace.spans["file"].dtype),
        offset=pl.when(is_read).then(0),
    )  # fmt: skip
    numbers = sorted(set(files))
    paths = pl.DataFrame(
        {"file": numbers, "path": [f"/data/{number}.bin" for number in numbers]},
        schema_overrides={"file": trace.files["file"].dtype},
    )
    run = trace.run.replace(capture=trace.run.capture.replace(reads=True))
    table = trace.files.join(paths, how="full", on=["file", "path"], coalesce=True).select(
        trace.files.columns
    )
    return on_cpu(Trace(run, spans.select(trace.spans.columns), table), workers=1)


def test_one_slow_file_of_many_is_to_be_copied() -> None:
    """A single file that all is read from is no exception."""
    files = [number % 20 for number in range(200)]
    verdict = summarise(reading([100 if file == 7 else 0.5 for file in files], files)).verdict
    first = verdict.findings[0]
    assert ("slow_file", "/data/7.bin", 10) == (
        first.code,
        first.facts["file"],
        first.facts["reads"],
    )
    alone = summarise(reading([20.0] * 200, [0] * 200)).verdict
    assert "slow_file" not in [each.code for each in alone.findings]


def test_small_reads_are_to_be_larger() -> None:
    """It comes before reading more at a time."""
    verdict = summarise(
        reading([2.0] * 400, [number % 20 for number in range(400)], sizes=2048)
    ).verdict
    assert "larger_reads" == verdict.findings[0].code


@pytest.mark.parametrize(
    ("later_ms", "bound", "first"), [(0.1, "compute", "storage"), (30.0, "storage", None)]
)
def test_a_first_epoch_from_storage_is_told_apart(
    later_ms: float, bound: str, first: str | None
) -> None:
    """The bound is that of the later epochs, which find the data in memory, unless these wait for
    storage as well."""
    epoch, epochs = 20, 5
    took = [30.0] * epoch + [later_ms] * epoch * (epochs - 1)
    trace = reading(took, [number % epoch for number in range(epoch * epochs)])
    if later_ms < 1:
        is_cached = (pl.col("kind") == "read") & (pl.col("batch") >= epoch)
        cached = pl.lit("page_cache", dtype=trace.spans["source"].dtype)
        trace = Trace(
            trace.run,
            trace.spans.with_columns(source=pl.when(is_cached).then(cached).otherwise("source")),
            trace.files,
        )
    run = with_gains(Run.of(with_epochs(trace, epoch)))
    verdict = run.summary.verdict
    assert (bound, first) == (verdict.bound_by, verdict.first_epoch)
    assert [] == contradictions(run)
    if first:
        assert "first_epoch" == verdict.sentences[0].code
        assert "first_epoch" == verdict.findings[-1].code
        assert verdict.findings[-1].facts["seconds"] == pytest.approx(0.58, abs=0.01)


@pytest.mark.parametrize(
    ("in_pipeline", "name"),
    [(True, "bubble, rank 1: compute"), (False, "message of rank 1: compute")],
)
def test_a_wait_for_a_message_is_a_bubble_in_pipelines_alone(in_pipeline: bool, name: str) -> None:
    """A worker of a parameter server has no pipeline."""
    found = Details()
    found.add_stragglers({1: {"compute": 10}}, {1: {"compute": 7}}, in_pipeline=in_pipeline)
    parts = found.of_cause("straggler", 10, timeline("step 000"))
    assert [(name, 7), ("rank 1: compute", 3)] == [
        (code.label(subject), took_ns) for (code, subject), took_ns in parts
    ]
