"""Runs whose pages are tested: a usual one, hostile names, long ones, and ones with something
missing."""

import dataclasses
from functools import cache
from typing import Any

import polars as pl
from sample_run import SampleRun, sample_run, steps_summary

from ioprof.format.run_record import CodeShare, DatasetRecord, Failure, ImageRecord
from ioprof.format.schema import CAUSES, SPAN_COLUMNS, STACK_COLUMNS
from ioprof.format.trace import Trace, table_schema

PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "<b>bold</b>",
    '<a href="//host">link</a>',
    "</script><script>alert(3)</script>",
    "<!--<script>",
    "%{x}%{customdata}<extra>",
    "red\x1b[31m\u202etfel\r\nnew line",
    "&lt;i&gt;already&lt;/i&gt; \u2028",
    "\udcff\x00",
    "long-" + "y" * 4000,
    "''\"\"``${alert(4)}",
)


@cache
def sample() -> SampleRun:
    return sample_run()


def numbers_of(column: bytes) -> list[int]:
    """Those that `encoding.varints` coded."""
    found, value, shift = [], 0, 0
    for byte in column:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(value)
            value = shift = 0
    return found


_TORCH = "/venv/lib/python3.11/site-packages/torch"
LOOP = (
    f"{_TORCH}/distributed/run.py:10:<module>",
    "/job/train.py:90:<module>",
    "/job/train.py:40:main",
)
IN_LOOP = (
    (f"{_TORCH}/utils/data/dataloader.py:700:DataLoader.__next__", "<frozen queue>:12:get"),
    ("/job/metrics.py:7:log_metrics",),
    ("/job/metrics.py:9:log_metrics", f"{_TORCH}/_tensor.py:3:Tensor.item"),
)
IN_WORKER = (
    (f"{_TORCH}/utils/data/_utils/worker.py:300:_worker_loop", "/job/data.py:14:Images.load"),
    (f"{_TORCH}/utils/data/_utils/worker.py:300:_worker_loop", "<frozen queue>:12:get"),
)


def sampled_run(run: SampleRun, every_ns: int = 10_000_000) -> SampleRun:
    """The run with a sample of each main thread and worker every 10 ms: at its even tenths of a
    second the loop is in `log_metrics`."""
    processes = run.trace.spans.select("rank", "pid").drop_nulls().unique().sort("pid").rows()
    host, rows = run.trace.spans["host"][0], []
    for time_ns in range(0, int(run.trace.spans["end_ns"].max()), every_ns):
        for rank, pid in processes:
            is_worker = pid % 100 != 0
            tenth = time_ns // 100_000_000
            inner = (
                IN_WORKER[(time_ns // every_ns) % 2]
                if is_worker
                else IN_LOOP[0 if tenth % 2 else 1 + (time_ns // every_ns) % 2]
            )
            stack = "\n".join(inner if is_worker else (*LOOP, *inner))
            rows.append((time_ns, host, rank, pid, pid, "worker" if is_worker else "rank", stack))
    table = pl.DataFrame(rows, schema=table_schema(STACK_COLUMNS), orient="row")
    return SampleRun(dataclasses.replace(run.trace, stacks=table), run.steps, run.summary)


def hostile_run() -> SampleRun:
    """The sample with every string replaced by a payload."""
    run = sample_run(steps=12)
    everything = " ".join(PAYLOADS)
    paths = pl.Series(
        "path",
        [
            PAYLOADS[number % len(PAYLOADS)].replace("\udcff", "?")
            for number in range(len(run.trace.files))
        ],
    )
    setting = run.summary.run.replace(
        **dict.fromkeys(("name", "loader", "device", "status", "started"), everything),
        dataset=DatasetRecord(
            name=everything, layout=everything, image=ImageRecord(transform=everything)
        ),
        failures=(Failure(rank=0, what=everything), Failure(what=everything)),
    )
    summary = run.summary
    slowest = tuple(
        entry.replace(path=payload, source=payload)
        for entry, payload in zip(summary.storage.slowest, PAYLOADS, strict=False)
    )
    summary = summary.replace(
        run=setting,
        storage=summary.storage.replace(slowest=slowest),
        capture=summary.capture.replace(not_seen=PAYLOADS),
        clocks=summary.clocks.replace(method=everything),
        verdict=summary.verdict.replace(text=everything),
        steps=summary.steps.replace(
            causes=tuple(entry.replace(reason=everything) for entry in summary.steps.causes)
        ),
    )
    frames = [
        "\n".join(f"{payload}:{line}:{payload}" for line, payload in enumerate(part))
        for part in (
            [payload.replace("\n", " ").replace("\udcff", "?") for payload in PAYLOADS][:6],
            [payload.replace("\n", " ").replace("\udcff", "?") for payload in PAYLOADS][6:],
        )
    ]
    sampled = sampled_run(run).trace.stacks
    stacks = sampled.with_columns(
        pl.Series("stack", [frames[place % 2] for place in range(len(sampled))]).cast(
            sampled.schema["stack"]
        )
    )
    return SampleRun(
        dataclasses.replace(run.trace, files=run.trace.files.with_columns(paths), stacks=stacks),
        run.steps,
        summary.replace(
            unexplained=tuple(
                CodeShare(
                    cause="decode",
                    file=payload,
                    line=1,
                    function=payload,
                    samples=1,
                    seconds=0.001,
                    share=0.02,
                    uncertainty_s=0.0001,
                    library=payload,
                )
                for payload in PAYLOADS
            )
        ),
    )


def long_run(ranks: int = 8, steps: int = 100_000) -> SampleRun:
    """A run of many steps with one stall, dense reads around it, and every path as costly as can
    be."""
    step = pl.select(step=pl.int_range(steps, dtype=pl.Int64))
    wall = (
        pl.when(pl.col("step") == 77_777)
        .then(9_000_000_000)
        .otherwise(90_000_000 + pl.col("step") * 7919 % 10_000_000)
    )
    timed = (
        step.with_columns(wall=wall)
        .with_columns(end_ns=pl.col("wall").cum_sum())
        .with_columns(start_ns=pl.col("end_ns") - pl.col("wall"))
    )
    table = pl.DataFrame({"rank": pl.Series(range(ranks), dtype=pl.Int32)}).join(timed, how="cross")
    charges = {cause: pl.col("wall") // 11 for cause in CAUSES if cause != "host"} | {
        "host": pl.col("wall") - pl.col("wall") // 11 * 10
    }
    blame = table.with_columns(
        **{f"{cause}_ns": charge.cast(pl.Int64) for cause, charge in charges.items()}
    ).drop("wall")
    spans = [
        blame.select(
            "rank", "step", "start_ns", "end_ns", kind=pl.lit(kind), pid=1000 + pl.col("rank")
        )
        for kind in ("step", "wait", "compute")
    ]
    near = blame.filter(
        pl.col("step").is_between(77_700, 77_800)
        | (pl.col("step") < 20)
        | pl.col("step").is_between(49_990, 50_010)
    )
    begin = pl.col("start_ns") + pl.col("image") * 200_000
    reads = near.join(pl.select(image=pl.int_range(400, dtype=pl.Int64)), how="cross").select(
        "rank",
        "step",
        start_ns=begin,
        end_ns=begin + 150_000,
        kind=pl.lit("read"),
        pid=2000 + pl.col("rank") * 10 + pl.col("image") % 4,
        file=pl.col("image"),
        bytes=pl.lit(110_000, dtype=pl.Int64),
        source=pl.lit("storage"),
    )
    schema = table_schema(SPAN_COLUMNS)
    whole = pl.concat([*spans, reads], how="diagonal_relaxed")
    whole = whole.with_columns(
        pl.lit(None).alias(name) for name in schema if name not in whole.columns
    )
    files = [{"file": number, "path": "<&>画像" * 40 + str(number)} for number in range(400)]
    base = sample_run(steps=1)
    paths = pl.DataFrame(files, schema_overrides={"file": pl.Int64}).with_columns(
        pl.lit(None).alias(name) for name in base.trace.files.columns[2:]
    )
    trace = Trace(
        base.trace.run,
        whole.select(pl.col(name).cast(kind) for name, kind in schema.items()),
        paths,
    )
    return SampleRun(trace, blame, base.summary.replace(steps=steps_summary(blame)))


FACTS_OF_RUN = (
    "name",
    "device",
    "device_basis",
    "loader",
    "dataset",
    "ranks",
    "workers",
    "batch_size",
    "processes",
    "failures",
    "started",
)


EMPTY: dict[str, dict[str, Any]] = {
    "no step": {"steps": 0},
    "one step of one rank": {"steps": 1, "ranks": 1},
    "no reads": {"images": 0, "steps": 30},
    "killed": {
        "steps": 5,
        "run": {"status": "failed", "failures": [{"rank": 0, "what": "was killed by SIGKILL"}]},
    },
    "nothing known of the run": {"steps": 3, "run": dict.fromkeys(FACTS_OF_RUN)},
}


def parts_of(run: SampleRun) -> tuple[Any, Any, Any]:
    return run.trace, run.steps, run.summary


def stalled_run(steps: int = 100_000, stall: int = 61_803) -> SampleRun:
    """Steps of about 10 ms, one of which takes 300 ms more, because of one of the two reads of its
    batch."""
    table = pl.select(step=pl.int_range(steps, dtype=pl.Int64)).with_columns(
        rank=pl.lit(0, dtype=pl.Int32), batch=pl.col("step")
    )
    extra = pl.when(pl.col("step") == stall).then(300_000_000).otherwise(0)
    wall = 10_000_000 + pl.col("step") * 7919 % 1_000_000 + extra
    ends = table.with_columns(end_ns=wall.cum_sum()).with_columns(start_ns=pl.col("end_ns") - wall)
    began = pl.col("start_ns")
    parts = [
        ends.with_columns(kind=pl.lit("step"), pid=100),
        ends.with_columns(kind=pl.lit("wait"), pid=100, end_ns=began + extra + 300_000),
        ends.with_columns(
            kind=pl.lit("compute"), pid=100, start_ns=began + extra + 400_000, batch=None
        ),
        ends.with_columns(kind=pl.lit("fetch"), pid=200, end_ns=began + extra + 200_000),
        *(
            ends.with_columns(
                kind=pl.lit("read"),
                pid=200,
                start_ns=began + 90_000 * place,
                end_ns=began + 90_000 * place + 50_000 + (extra if place else 0),
                file=2 * (pl.col("step") % 1000) + place,
                bytes=110_000,
                source=pl.lit("storage"),
            )
            for place in (0, 1)
        ),
    ]
    schema = table_schema(SPAN_COLUMNS)
    whole = pl.concat(
        [
            part.with_columns(
                pl.lit(None).alias(name) for name in schema if name not in part.columns
            )
            for part in parts
        ],
        how="diagonal_relaxed",
    )
    base = sample_run(steps=1)
    files = pl.DataFrame(
        {"file": range(2000), "path": [f"/data/{number:04d}.jpg" for number in range(2000)]}
    ).with_columns(pl.lit(None).alias(name) for name in base.trace.files.columns[2:])
    trace = Trace(
        base.trace.run,
        whole.select(pl.col(name).cast(kind) for name, kind in schema.items()),
        files,
    )
    charges = {"storage": extra, "compute": wall - extra}
    charged = ends.drop("batch").with_columns(
        **{f"{cause}_ns": charges.get(cause, pl.lit(0)).cast(pl.Int64) for cause in CAUSES}
    )
    return SampleRun(trace, charged, base.summary.replace(steps=steps_summary(charged)))
