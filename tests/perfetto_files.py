"""Reads a .pftrace by Perfetto's own classes, and compares its slices with a run."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ioprof.report.run import Run


class Decoded:
    """A .pftrace, read by Perfetto's own classes, and its slices paired as the trace processor
    does: an end closes the slice of its track that was begun last; packets of one time are taken in
    the order of the file."""

    def __init__(self, path: Path) -> None:
        messages = pytest.importorskip(
            "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs the package perfetto"
        )
        trace = messages.Trace()
        trace.ParseFromString(path.read_bytes())
        self.tracks: dict[int, Any] = {}
        texts: dict[tuple[str, int], str] = {}
        events = []
        for packet in trace.packet:
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            for field, entries in packet.interned_data.ListFields():
                texts |= {
                    (field.name, entry.iid): _text(getattr(entry, "name", None) or entry.str)
                    for entry in entries
                }
            if packet.HasField("track_event"):
                events.append((packet.timestamp, packet.track_event))
        self.slices: list[dict[str, Any]] = []
        self.counters: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.unbalanced = 0
        self.begun: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, dict[str, Any]] = {}
        self._pair(sorted(events, key=lambda event: event[0]), texts, messages.TrackEvent)

    def _pair(self, events: list[Any], texts: dict[tuple[str, int], str], types: Any) -> None:
        stacks: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for time, event in events:
            if event.type == types.TYPE_COUNTER:
                self.counters[self.tracks[event.track_uuid].name].append(
                    (time, event.double_counter_value)
                )
            elif event.type == types.TYPE_SLICE_BEGIN:
                arguments = {
                    texts["debug_annotation_names", each.name_iid]: each.int_value
                    if each.HasField("int_value")
                    else texts["debug_annotation_string_values", each.string_value_iid]
                    for each in event.debug_annotations
                }
                kind, name = (
                    texts["event_categories", event.category_iids[0]],
                    texts["event_names", event.name_iid],
                )
                stacks[event.track_uuid].append(
                    {"kind": kind, "name": name, "start": time, **arguments}
                )
            elif not stacks[event.track_uuid]:
                self.unbalanced += 1
            else:
                closed = stacks[event.track_uuid].pop()
                closed["end"] = time
                self.slices.append(closed)
                self.begun |= dict.fromkeys(event.flow_ids, closed)
                self.ended |= dict.fromkeys(event.terminating_flow_ids, closed)
        self.unbalanced += sum(map(len, stacks.values()))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def rows(spans: pl.DataFrame) -> Counter[tuple[Any, ...]]:
    texts = spans.with_columns(pl.col("kind").cast(pl.String))
    return Counter(
        texts.select("kind", "start_ns", "end_ns", "step", "batch", "bytes", "offset").rows()
    )


def of_slices(slices: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    keys = ("kind", "start", "end", "step", "batch", "bytes", "offset")
    return Counter(tuple(each.get(key) for key in keys) for each in slices)


def check_summary(slices: list[dict[str, Any]], run: Run) -> None:
    """What the file and summary.json both say is the same."""
    summary = run.summary
    assert len(slices) == summary.capture.events
    reads = [each for each in slices if each["kind"] == "read" and each.get("batch") is not None]
    assert (len(reads), sum(each["bytes"] for each in reads)) == (
        summary.storage.accesses,
        summary.storage.bytes,
    )
    by_source = Counter[str]()
    for each in reads:
        by_source[each["source"]] += each["bytes"]
    assert by_source["storage"] == summary.storage.bytes_from_storage
    assert by_source["page_cache"] == summary.storage.bytes_from_cache
    steps = [each for each in slices if each["kind"] == "step"]
    assert len(steps) == sum(rank.steps for rank in summary.steps.per_rank)
    assert sum(each["end"] - each["start"] for each in steps) / 1e9 == pytest.approx(
        sum(rank.wall_s for rank in summary.steps.per_rank)
    )
