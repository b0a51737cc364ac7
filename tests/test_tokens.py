"""Batches of text: their tokens, and how many positions are padding."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jobs import ioprof
from repository import PROGRAMS
from timeline import timeline

from ioprof.analysis.summary import summarise
from ioprof.format.schema import LONGEST, TOKENS
from ioprof.instrument.hooks.pytorch.tokens import tokens
from ioprof.model.summary import with_gains
from ioprof.report.run import Run


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(9, 12))
def test_tokens_are_those_of_the_mask_or_of_the_lengths(lengths: list[int], width: int) -> None:
    """In a batch with padding by its mask, packed in one row by the lengths; by the shape alone
    nothing is known of padding."""
    ids = torch.ones(len(lengths), width, dtype=torch.int64)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).to(torch.int64)
    positions = len(lengths) * width
    wanted = len(lengths) * max(lengths)
    found = tokens({"input_ids": ids, "attention_mask": mask})
    assert (sum(lengths), positions, wanted) == found
    assert (-1, positions, None) == tokens({"input_ids": ids}) == tokens([ids, ids])
    ends = torch.tensor([0, *lengths]).cumsum(0)
    row = torch.ones(1, positions, dtype=torch.int64)
    assert (sum(lengths), positions, None) == tokens({"input_ids": row, "cu_seqlens": ends})


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(4, 4, dtype=torch.int64),
        [torch.rand(4, 3, 8, 8), torch.ones(4, dtype=torch.int64)],
        {"pixel_values": torch.rand(4, 3), "labels": torch.ones(4, dtype=torch.int64)},
        {"input_ids": "text"},
        [torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 4, dtype=torch.int64)],
        None,
    ],
)
def test_other_batches_are_none_of_text(batch: Any) -> None:
    """Images with labels, one tensor, what is no tensor."""
    assert tokens(batch) is None


@given(st.lists(st.integers(1, 30), min_size=2, max_size=8), st.sampled_from([0, 1, 50256]))
def test_rows_that_end_in_one_value_are_padded(lengths: list[int], pad: int) -> None:
    """Where no mask says so, if they do so after different numbers of others."""
    ids = torch.arange(2, 2 + len(lengths) * 32).reshape(len(lengths), 32)
    for row, length in enumerate(lengths):
        ids[row, length:] = pad
    batch = [ids, torch.ones(len(lengths), dtype=torch.int64)]
    if min(lengths) < max(lengths) and min(lengths) < 24:
        assert (sum(lengths), ids.numel(), len(lengths) * max(lengths)) == tokens(batch)
    else:
        assert tokens(batch) is None


@pytest.mark.parametrize(
    "rows",
    [
        torch.nn.functional.one_hot(torch.arange(32), 32),
        (torch.arange(32 * 32).reshape(32, 32) * 2654435761 % 97 == 0).long(),
        torch.zeros(8, 32, dtype=torch.int64),
        torch.arange(8 * 32).reshape(8, 32),
    ],
    ids=["classes", "sparse", "nothing", "full rows"],
)
def test_rows_that_are_no_text_are_not_padded(rows: torch.Tensor) -> None:
    """Their last value is common before the end, or each row has another one."""
    assert tokens([rows, torch.ones(len(rows), dtype=torch.int64)]) is None


def test_the_rate_is_that_of_the_samples() -> None:
    """By the mean of the batches that were looked at; padding counts for nothing."""
    drawing = """
        step main        0000000000 1111111111 2222222222 3333333333
        wait             .0........ .1........ .2........ .3........
        fetch w0         0.........1.........2.........3............
    """
    trace = timeline(
        drawing.replace(
            "1.........2.........3............", "......... 1......... 2......... 3........."
        )
    )
    import polars as pl

    rows = [
        row | ({"offset": 2} if row["kind"] == "fetch" else {}) for row in trace.spans.to_dicts()
    ]
    looked = {
        "kind": "deliver",
        "name": TOKENS,
        "offset": 20,
        "rank": 0,
        "start_ns": 5,
        "end_ns": 5,
    }
    rows += [looked | {"batch": 0, "bytes": 15}, looked | {"batch": 2, "bytes": 5}]
    rows.append(looked | {"name": LONGEST, "batch": 0, "bytes": 18, "offset": None})
    found = summarise(type(trace)(trace.run, pl.DataFrame(rows, trace.spans.schema))).throughput
    assert (0.5, 2) == (found.padding_ratio, found.batches_looked_at)
    assert found.excess_ratio == pytest.approx(0.1)
    best = found.steady_samples_per_s or found.samples_per_s
    assert best is not None
    assert found.tokens_per_s == pytest.approx(best * 20 / 2 * 0.5)


@pytest.mark.job(every=4)
def test_a_job_of_text_is_told_its_padding(tmp_path: Path) -> None:
    """Exactly that of the batches that were looked at, the first eight of their maker and then one
    in sixteen, with workers and without; the report names rate and padding, and what to do about
    it."""
    for workers in (0, 1):
        program = [sys.executable, PROGRAMS / "train_on_text.py", workers, 48]
        run = f"run-{workers}"
        ended = ioprof("record", "--quiet", "--out", run, "--", *program, cwd=tmp_path)
        assert 0 == ended.code, ended.err
        summary = with_gains(Run.load(tmp_path / run)).summary
        sizes = json.loads(ended.out)
        looked_at = [*sizes[:8], sizes[15], sizes[31], sizes[47]]
        real, positions = map(sum, zip(*looked_at, strict=True))
        assert len(looked_at) == summary.throughput.batches_looked_at
        assert summary.throughput.padding_ratio == pytest.approx(1 - real / positions)
        assert summary.replay is not None
        codes = [each.code for each in summary.verdict.findings]
        assert "padding" in codes or summary.replay.reason, codes
        report = ioprof("report", run, "--full", cwd=tmp_path).out
        assert re.search(
            rf" tokens/s, {1 - real / positions:.1%}\s+of\s+the\s+positions\s+are\s+padding", report
        )
