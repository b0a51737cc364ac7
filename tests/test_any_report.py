"""Every report can be made of any recording."""

import re
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from strategies import examples, traces

from ioprof.format.run_record import Summary
from ioprof.format.trace import Trace
from ioprof.report.page import payload, stalls
from ioprof.report.page.html import page
from ioprof.report.run import Run
from ioprof.report.texts.brief import brief_text
from ioprof.report.texts.storage_statements import run_statements
from ioprof.report.texts.text import comparison_text, summary_text

NOT_A_NUMBER = re.compile(r"\b(nan|inf|None)\b")


@st.composite
def recordings(draw: st.DrawFn) -> Trace:
    """A job as drawn by `traces`, made many times one after the other, on files, with durations
    from none to seconds."""
    trace = draw(traces(max_steps=3))
    scale, times, untimed = (
        draw(st.sampled_from([1, 1000, 10**6, 10**8])),
        draw(st.sampled_from([1, 2, 40])),
        draw(st.booleans()),
    )
    trace = (
        trace
        if draw(st.booleans())
        else replace(trace, spans=trace.spans.filter(pl.col("kind") != "step"))
    )
    column = trace.spans.schema
    length = max(1, trace.spans["end_ns"].max() or 1)  # type: ignore[type-var,operator]
    moves = pl.col("kind").cast(pl.String).is_in(["read", "fault"])
    number = pl.int_range(pl.len())
    steps = (trace.spans["step"].max() or 0) + 1  # type: ignore[operator]
    spans = pl.concat(
        [
            trace.spans.with_columns(
                start_ns=(pl.col("start_ns") + turn * length) * scale,
                end_ns=(
                    pl.when(moves & untimed).then("start_ns").otherwise("end_ns") + turn * length
                )
                * scale,
                step=pl.col("step") + turn * steps,
                batch=pl.col("batch") + turn * steps,
                bytes=pl.when(moves)
                .then((number * 7919) % draw(st.sampled_from([1, 4097, 10**7])))
                .cast(column["bytes"]),
                offset=pl.when(moves).then((number * 104_729) % 10**9).cast(column["offset"]),
                file=pl.when(moves).then(number % 3).cast(column["file"]),
            )
            for turn in range(times)
        ]
    )
    paths = [
        "/data/a",
        draw(st.text(max_size=8).map(lambda name: f"/data/{name}")),
        "/data/<script>\x1b[31m\nb",
    ]
    files = pl.DataFrame({"file": [0, 1, 2], "path": paths, "size_bytes": [0, 10, 10**9]})
    schema = trace.files.schema
    files = files.with_columns(pl.col(name).cast(schema[name]) for name in files.columns)
    return Trace(
        trace.run, spans.cast(dict(column)), pl.concat([trace.files, files], how="diagonal")
    )  # type: ignore[arg-type]


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(recordings(), st.integers(40, 200), st.sampled_from([1, 3, 40, payload.MOST_SPANS]))
def test_every_report_can_be_made_of_any_recording(
    trace: Trace, columns: int, most_spans: int
) -> None:
    """In the terminal, short and whole; as a page, of all spans or of chosen ones; as JSON, which
    is read back; and compared with itself.
    """
    run = Run.of(trace)
    more = run_statements(trace)
    texts: list[Any] = [
        brief_text(run.summary, run.steps),
        summary_text(run.summary, more),
        comparison_text([run.summary] * 2),
    ]
    for text in texts:
        console = Console(width=columns, force_terminal=False, color_system=None)
        with console.capture() as captured:
            console.print(text)
        assert "\x1b" not in captured.get()
        assert not NOT_A_NUMBER.search(captured.get()), captured.get()
    with pytest.MonkeyPatch.context() as patch:
        for module in (payload, stalls):
            patch.setattr(module, "MOST_SPANS", most_spans)
        html = page(trace, run.steps, run.summary)
    assert "<script>\x1b" not in html
    assert run.summary == Summary.from_json(run.summary.to_json())
