"""Stacks in the page: how they are folded and coded, and the bars of code behind the causes."""

import base64
import json
import re
import struct
import zlib
from collections import Counter
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_runs import LOOP, numbers_of, parts_of, sample, sampled_run

from ioprof.analysis.cpu.frames import frames_of, place_of
from ioprof.format.run_record import CodeShare
from ioprof.report.page import stacks as module
from ioprof.report.page.code_section import code_of_causes
from ioprof.report.page.html import page
from ioprof.report.page.stacks import folded, stack_blocks
from ioprof.report.texts.code_lines import code_lines, code_table


def columns_of(text: str | None) -> list[Any]:
    """The columns of a block: the first as bytes, the others as numbers."""
    data = zlib.decompress(base64.b64decode(text or ""), -15)
    (number,) = struct.unpack_from("<I", data)
    lengths = struct.unpack_from(f"<{number}I", data, 4)
    begin, columns = 4 * (number + 1), []
    for place, length in enumerate(lengths):
        column = data[begin : begin + length]
        columns.append(column if place == 0 else numbers_of(column))
        begin += length
    return columns


TORCH = "/venv/lib/python3.11/site-packages/torch"


def test_libraries_are_folded_to_what_was_called_and_where_it_ended() -> None:
    """Those that called the user's outermost function are left out; in between one frame stays."""
    stack = (
        *LOOP,
        f"{TORCH}/nn/module.py:1:Module.__call__",
        f"{TORCH}/nn/module.py:2:Module._call",
        "/job/model.py:5:Net.forward",
        f"{TORCH}/a.py:1:first",
        f"{TORCH}/b.py:2:second",
        f"{TORCH}/c.py:3:third",
    )
    assert folded("\n".join(stack)) == (
        ("<module>", "/job/train.py", 90, True),
        ("main", "/job/train.py", 40, True),
        ("Module.__call__", "torch/nn/module.py", 0, False),
        ("Net.forward", "/job/model.py", 5, True),
        ("first", "torch/a.py", 0, False),
        ("third", "torch/c.py", 0, False),
    )


def test_a_recursion_is_one_step_at_its_innermost_line() -> None:
    stack = "\n".join(("/job/a.py:1:walk", "/job/a.py:2:walk", "/job/a.py:3:walk"))
    assert folded(stack) == (("walk", "/job/a.py", 3, True),)


frames = st.builds(
    "{}:{}:{}".format,
    st.sampled_from(
        (
            f"{TORCH}/x.py",
            "/job/a.py",
            "/job/b.py",
            "<frozen importlib._bootstrap>",
            "<ioprof>/h.py",
        )
    ),
    st.integers(0, 3),
    st.sampled_from(("f", "g", "<module>")),
)


@given(st.lists(frames, min_size=1, max_size=120))
def test_own_functions_keep_their_order_and_libraries_gain_none(stack: list[str]) -> None:
    """But for recursion and the middle of a very long stack."""
    text = "\n".join(stack)
    steps = folded(text)
    assert 0 < len(steps) <= module.MOST_FRAMES
    own = [(f.function, f.file) for f in frames_of(text) if not f.is_library]
    kept = [step[:2] for step in steps if step[3]]
    places = iter(own)
    assert all(step in places for step in kept)
    if own and len(own) < module.MOST_FRAMES // 2:
        assert set(kept) == set(own)
    assert all(one[:2] != other[:2] for one, other in pairwise(steps))


def test_each_sample_is_in_the_page_with_its_time_and_stack() -> None:
    run = sampled_run(sample())
    found = stack_blocks(run.trace, [0, 1])
    assert sum(thread["count"] for thread in found.threads) == len(run.trace.stacks)
    columns = columns_of(found.text)
    functions = json.loads(columns[0])
    parents, functions_of, lines = columns[1:4]

    def path(node: int) -> tuple[tuple[object, ...], ...]:
        name, file, is_own = functions[functions_of[node]]
        own = (name, file, lines[node], bool(is_own))
        return (*(path(parents[node] - 1) if parents[node] else ()), own)

    for place, thread in enumerate(found.threads):
        times, last = [], 0
        for value in columns[4 + 2 * place]:
            last += -(value + 1) // 2 if value % 2 else value // 2
            times.append(last * 100)
        of_thread = run.trace.stacks.filter(pl.col("tid") == thread["tid"]).sort("time_ns")
        assert times == of_thread["time_ns"].to_list()
        expected = [folded(text) for text in of_thread["stack"].cast(pl.String)]
        assert [path(node) for node in columns[5 + 2 * place]] == expected


def test_of_very_many_samples_one_of_each_few_is_in_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the page says so."""
    monkeypatch.setattr(module, "MOST_SAMPLES", 500)
    run = sampled_run(sample())
    found = stack_blocks(run.trace, [0, 1])
    number = sum(thread["count"] for thread in found.threads)
    assert len(run.trace.stacks) / (found.every + 1) < number <= 500 + len(found.threads)
    assert f"one of {found.every} is in the page" in page(*parts_of(run))


def test_bars_of_code_are_as_wide_as_the_lines_of_the_table() -> None:
    """A function's bar is the sum of its lines, and all functions together are the cause's time
    that has samples."""
    summary = sample().summary
    cause = max(summary.steps.causes, key=lambda entry: entry.seconds or 0)
    assert cause.seconds
    share = {("load", 3): 0.25, ("load", 4): 0.125, ("other", 9): 0.5}
    lines = tuple(
        CodeShare(
            cause=cause.cause,
            file="/job/data.py",
            line=line,
            function=function,
            samples=round(part * 80),
            seconds=part * cause.seconds,
            share=part,
            uncertainty_s=0.0,
        )
        for (function, line), part in share.items()
    )
    html = code_of_causes(summary.replace(unexplained=lines)) or ""
    bars = re.findall(r"left:([\d.]+)%;width:([\d.]+)%;top:(\d+)px\">([^<]*)<", html)
    widths = Counter[str]()
    for _, width, _, name in bars:
        widths[name] += float(width)
    assert widths == {
        "other": 50,
        "load": 37.5,
        "data.py:3": 25,
        "data.py:4": 12.5,
        "data.py:9": 50,
    }


def test_code_of_libraries_alone_is_not_called_yours() -> None:
    """Neither in the terminal nor in the page, where it is behind a fold of its own."""
    place = place_of(f"<frozen runpy>:198:_run_module_as_main\n{TORCH}/storage.py:414:_new_shared")
    line = CodeShare(
        cause="host",
        file=place.file,
        line=place.line,
        function=place.function,
        samples=9,
        seconds=1.0,
        share=0.4,
        uncertainty_s=0.1,
        library=place.library,
        is_own=place.is_own,
    )
    summary = sample().summary.replace(unexplained=(line,))
    assert code_lines(summary) == []
    table = code_table(summary) or ""
    assert "your code, by samples" not in table
    assert "<summary>Libraries that none of your code had called</summary>" in table
    own = summary.replace(unexplained=(line.replace(file="/job/train.py", is_own=True), line))
    assert len(code_lines(own)) == 1
