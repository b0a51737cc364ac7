"""Bytes that a worker sends with a batch whose tensors are parts of larger ones."""

from typing import Any

import polars as pl
import pytest
from timeline import timeline
from told import summarise

from ioprof.analysis.charge.sent_views import SentViews, sent_views
from ioprof.format.schema import SENT
from ioprof.format.trace import Trace
from ioprof.instrument.hooks.pytorch import sent_batches

MB = 1_000_000
DRAWING = "step 0000000000\nwait 00000000..\nfetch w0 0\ncompute ........00\ndeliver w0 .0"


def test_a_view_is_sent_with_all_of_its_storage() -> None:
    """Each storage counts once, in lists, tuples and mappings; what is in shared memory already is
    not sent again."""
    torch = pytest.importorskip("torch")
    whole = torch.zeros(1000, 250)
    assert (2 * 1000, MB) == sent_batches.measured([whole[:250, 0], {"rest": (whole[0],)}])
    assert (MB, MB) == sent_batches.measured({"image": whole, "name": "a", "number": 3})
    assert (0, 0) == sent_batches.measured(
        ["text", None, torch.zeros(3).to_sparse(), torch.zeros(4, device="meta")]
    )
    assert (0, 0) == sent_batches.measured([torch.zeros(100).share_memory_()])


def test_a_large_batch_is_looked_at_in_part() -> None:
    """A list of many objects takes no longer than some."""
    torch = pytest.importorskip("torch")
    tensors = [torch.zeros(1) for _ in range(3 * sent_batches._MOST_VISITED)]
    assert 4 * (sent_batches._MOST_VISITED - 1) == sent_batches.measured(tensors)[0]


def test_batches_are_looked_at_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones may move what a dataset holds into shared memory for good."""
    recorded: list[Any] = []
    monkeypatch.setattr(
        sent_batches, "emit", lambda *_args, **named: recorded.append(named["batch"])
    )
    for place in range(1, 101):
        sent_batches.record_batch([], place, place, is_sent=True)
    assert [4, 8, 16, 32, 64] == recorded


def marked(drawn: Trace, part: float, whole: float) -> Trace:
    """The trace, whose batches have so many bytes and are sent with so many."""
    values = {"name": SENT, "bytes": int(whole), "offset": int(part)}
    columns = [
        pl.when(pl.col("kind") == "deliver")
        .then(pl.lit(value))
        .otherwise(name)
        .cast(drawn.spans[name].dtype)
        .alias(name)
        for name, value in values.items()
    ]
    return Trace(drawn.run, drawn.spans.with_columns(columns))


@pytest.mark.parametrize(
    ("part", "whole", "is_told"),
    [(MB, 20 * MB, True), (MB, 1.5 * MB, False), (1000, 100_000, False), (0, 0, False)],
)
def test_much_more_than_the_tensors_is_told(part: float, whole: float, is_told: bool) -> None:
    """At least twice as much, and a megabyte; then it is the first advice where batches are late by
    being sent."""
    trace = marked(timeline(DRAWING), part, whole)
    assert (SentViews(part, whole) if is_told else None) == sent_views(trace)
    assert is_told == (
        1 == sum("Send a copy" in advice.action for advice in summarise(trace).verdict.findings)
    )


def test_the_advice_is_given_once_where_freeing_takes_longer_than_sending() -> None:
    """The loop's own time is the bound, and delivery the next cause: a batch that is sent whole is
    also freed in the loop."""
    drawing = (
        "step 00000000000000000000\nwait 000000..............\nfetch w0 0\ncompute"
        " ................0000\ndeliver w0 .0"
    )
    found = summarise(marked(timeline(drawing), 1000, 20 * MB)).verdict
    assert "host" == found.bound_by
    assert [0] == [
        number for number, advice in enumerate(found.findings) if "Send a copy" in advice.action
    ]
