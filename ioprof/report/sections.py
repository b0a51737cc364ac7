"""The parts of the page beside its charts: verdict, tables, caveats, glossary; every number comes from the summary."""

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from ioprof import __version__
from ioprof.analysis.result import CauseShare, Summary
from ioprof.report import views
from ioprof.report.caveats import caveats
from ioprof.report.facts import (
    CauseRow,
    Fact,
    cause_rows,
    clocks_text,
    facts,
    failures,
    is_emulated,
    seconds,
    setting,
    title,
    total_row,
    unseen,
)
from ioprof.report.markup import Html, element, join, table
from ioprof.report.units import MISSING, amount, clean, count, duration, percent, rate, shares
from ioprof.schema import CAUSES, SUMMARY_SCHEMA

CAUSE_MEANINGS: Final = {
    "compute": "The accelerator ran the model: forward, backward, optimizer.",
    "communication": "Gradient exchange that compute did not hide, waiting for slower ranks included.",
    "h2d": "Copies from host to device that compute did not hide.",
    "storage": "The rank waited for a batch whose worker was in a read that needed the device or the network.",
    "page_cache": "The same, for reads that the operating system served from memory.",
    "decode": "The rank waited while the batch's images were decoded.",
    "transform": "The rank waited for crop, resize, flip, normalise.",
    "collate": "The rank waited while samples were put together to a batch.",
    "delivery": "The batch was ready, and on its way from the worker to the rank.",
    "loader": "The rank waited and no span of the batch explains it: start-up, queues, the worker between its spans.",
    "host": "What remains of the step: Python between the spans. It is a remainder, and reported as one.",
}
BASIS_MEANINGS: Final = {
    "measured": "timed while it happened",
    "derived": "computed from measured numbers",
    "emulated": "rests on a clock that stands in for the accelerator",
    "predicted": "the outcome of a replay with one cost changed; its error is printed beside it",
}
_CONTENTS: Final = (
    ("time", "Time"), ("throughput", "Throughput"), ("steps", "Steps"), ("timeline", "Timeline"),
    ("storage", "Storage"), ("complete", "Completeness"), ("reading", "How to read"),
)  # fmt: skip


def header(summary: Summary) -> Html:
    """The name of the run, what it was, and the contents."""
    links = (element("a", word, href=f"#{name}") for name, word in _CONTENTS)
    started = summary.run.get("started")
    about = [setting(summary), f"Started {clean(started)}" if started else ""]
    return element(
        "header",
        element("p", "ioprof report", class_="brand"),
        element("h1", title(summary)),
        element("p", ". ".join(text for text in about if text), class_="quiet"),
        element("nav", *links, aria_label="Contents"),
    )


def footer() -> Html:
    """Who made the page."""
    return element("footer", f"ioprof {__version__}, {SUMMARY_SCHEMA}. This file contains all it shows and requests nothing.")


def section(name: str, heading: str, *children: str | None) -> Html:
    """A section with its heading."""
    return element("section", element("h2", heading, id=f"{name}-heading"), *children, id=name, aria_labelledby=f"{name}-heading")


def nothing(reason: str) -> Html:
    """What stands where there is nothing to draw."""
    return element("p", f"Nothing to show: {reason}.", class_="nothing")


def bound_by(summary: Summary) -> str:
    """What the run is bound by, in a word or two."""
    return f"bound by {summary.verdict.bound_by}" if summary.verdict.bound_by else "no verdict"


def verdict(summary: Summary, more: Sequence[Fact] = ()) -> Html:
    """Failures, the answer, four numbers, what to change, and the facts below: the summary's, and `more`."""
    banner = [element("p", line) for line in failures(summary)]
    advice = [
        element("li", clean(entry.action, 300), _gain(entry.predicted_speedup, entry.error)) for entry in summary.verdict.advice
    ]
    changes = join(element("h3", "What to change"), element("ul", *advice)) if advice else None
    rows = (join(element("dt", fact.label), element("dd", fact.text, badge(fact.basis))) for fact in (*facts(summary), *more))
    card = element(
        "div",
        element("p", clean(summary.verdict.text, 600), class_="answer"),
        _tiles(summary),
        changes,
        class_=f"card cause-{summary.verdict.bound_by or 'host'}",
    )
    return element(
        "section",
        element("div", *banner, class_="banner", role="alert") if banner else None,
        card,
        element("dl", *rows, class_="facts"),
        id="verdict",
        aria_label="Verdict",
    )


def badge(basis: str | None) -> Html | None:
    """The word for how a number came to be."""
    return (
        element("span", basis, class_=f"badge {basis}", title=BASIS_MEANINGS.get(basis)) if basis and basis != "unknown" else None
    )


def time_table(summary: Summary) -> Html:
    """The table of causes: its shares add up to 100.0."""
    rows = [_time_row(row, entry) for row, entry in zip(cause_rows(summary.steps.causes), summary.steps.causes, strict=True)]
    total = total_row(summary.steps.causes)
    rows.append(("total", total.seconds, total.share, Html(""), Html(""), "all steps of all ranks"))
    headings = ("cause", "seconds", "share %", "", "basis", "note")
    return element("div", table(headings, rows, frozenset({1, 2}), "Time of all steps, by cause"), class_="causes")


def rank_table(summary: Summary, steps: pl.DataFrame) -> Html | None:
    """The same for each rank, behind a fold."""
    shown = set(views.bars_of_time_by_cause(steps))
    ranks = [entry for entry in summary.steps.per_rank if entry["rank"] in shown]
    if len(summary.steps.per_rank) < 2:
        return None
    rows = [
        (
            str(entry["rank"]),
            count(entry["steps"]),
            seconds(entry["wall_s"]),
            *shares([entry.get(f"{cause}_s") for cause in CAUSES]),
        )
        for entry in ranks
    ]
    headings = ("rank", "steps", "seconds", *(f"{cause}%" for cause in CAUSES))
    return element("details", element("summary", "Each rank as a table"), table(headings, rows, frozenset(range(len(headings)))))


def longest_steps(summary: Summary, steps: pl.DataFrame) -> Html | None:
    """The longest steps, and what they waited for."""
    rows = [_long_step(row) for row in views.longest_steps(steps).iter_rows(named=True)]
    headings = ("step", "rank", "began at, s", "took", "greatest cause after compute", "its share")
    about = "Durations are emulated: they include the time of an emulated device" if is_emulated(summary) else None
    found = table(headings, rows, frozenset({0, 1, 2, 3, 5}), about)
    return element("details", element("summary", f"The {len(rows)} longest steps"), found) if rows else None


def _long_step(row: dict[str, Any]) -> tuple[str, ...]:
    took, cause = row["wall_ns"], row["cause"]
    share = percent(row["cause_ns"] / took if took else None)
    named = join(swatch(cause), cause)
    return (str(row["step"]), str(row["rank"]), f"{row['start_ns'] / 1e9:,.3f}", duration(took / 1e9), named, share)


def storage(summary: Summary) -> Html:
    """What was read, in a few numbers."""
    found = summary.storage
    if not found.accesses:
        return nothing("no read was recorded")
    tiles = [
        _tile(count(found.accesses), "accesses", "measured"),
        _tile(amount(found.bytes), "read", "measured"),
        _tile(amount(found.bytes_from_storage), "from storage", "measured"),
        _tile(amount(found.bytes_from_cache), "from page cache", "measured"),
        _tile(amount(found.bytes_unknown), "source unknown", "measured"),
        _tile(
            f"{duration(found.read_p50_s)} / {duration(found.read_p95_s)} / {duration(found.read_p99_s)}",
            "one read, p50 / p95 / p99",
            "measured",
        ),
    ]
    return element("div", *tiles, class_="tiles")


def slowest_reads(summary: Summary) -> Html | None:
    """The slowest reads, with their files."""
    rows = [
        (str(place), clean(entry.get("path") or "unknown file", 90), duration(entry.get("seconds")), amount(entry.get("bytes")),
         str(entry.get("source") or "unknown").replace("_", " "), *(_number(entry.get(key)) for key in ("rank", "step", "batch")))
        for place, entry in enumerate(summary.storage.slowest, start=1)
    ]  # fmt: skip
    headings = ("", "file", "took", "bytes", "source", "rank", "step", "batch")
    return table(headings, rows, frozenset({0, 2, 3, 5, 6, 7}), "The slowest reads") if rows else None


def completeness(summary: Summary) -> Html:
    """Capture, clocks, what was not seen, caveats."""
    capture = summary.capture
    tiles = element(
        "div",
        _tile(count(capture.events), "events recorded", None),
        _tile(count(capture.lost), "events lost", None),
        _tile(percent(capture.coverage_ratio, 2), "of the bytes that the kernel counted", None),
        _tile(MISSING if capture.ns_per_event is None else duration(capture.ns_per_event / 1e9), "per event", "measured"),
        _tile(percent(capture.overhead_ratio, 2), "of the job's time, at least, went into recording", "derived"),
        class_="tiles",
    )
    missing = [element("li", sentence) for sentence in unseen(summary)]
    found = [(entry.name, entry.seen, entry.cause, entry.remedy) for entry in caveats(summary)]
    return join(
        tiles,
        element("p", f"Clocks: {clocks_text(summary)}."),
        element("h3", "Not seen"),
        element("ul", *missing) if missing else element("p", "Nothing is known to be missing."),
        element("h3", "Before you rely on this"),
        table(("caveat", "what was seen", "likely cause", "what to do"), found)
        if found
        else element("p", "No caveat applies to this run."),
    )


def glossary() -> Html:
    """What the causes and the bases mean, and how the charts are used."""
    meanings = (join(element("dt", swatch(cause), cause), element("dd", CAUSE_MEANINGS[cause])) for cause in CAUSES)
    bases = (join(element("dt", badge(word)), element("dd", text)) for word, text in BASIS_MEANINGS.items())
    keys = "Charts: drag to zoom, double-click to see all, click a legend entry to hide it. With the keyboard: Tab to a chart, "
    return join(
        element(
            "p",
            "For every rank and step the causes add up to the step's wall time. A cause that could not be measured is –, never 0.",
        ),
        element("dl", *meanings, class_="glossary"),
        element("dl", *bases, class_="glossary"),
        element("p", keys, "← and → to move, + and − to zoom, 0 to see all."),
    )


def swatch(cause: str) -> Html:
    """A square in the colour of the cause."""
    return element("i", class_=f"swatch cause-{cause}", aria_hidden="true")


def _tiles(summary: Summary) -> Html:
    found, basis = summary.throughput, "emulated" if is_emulated(summary) else "measured"
    own = found.device_samples_per_s
    reached = f"of {rate(own)} that the devices alone would reach" if own else "samples/s, steady"
    share = percent(found.steady_samples_per_s / own) if own and found.steady_samples_per_s is not None else None
    tiles = [
        _tile(summary.verdict.bound_by or MISSING, "bound by", None),
        _tile(rate(found.steady_samples_per_s), "samples/s, steady", found.basis),
        _tile(share, reached, "emulated" if is_emulated(summary) else "derived") if share else None,
        _tile(duration(summary.steps.p50_s), "step, median", basis),
    ]
    return element("div", *tiles, class_="tiles")


def _tile(number: str, label: str, basis: str | None) -> Html:
    return element("div", element("strong", number), element("span", label, " ", badge(basis)), class_="tile")


def _gain(speedup: float | None, error: float | None) -> Html | None:
    if speedup is None:
        return None
    return join(f": {speedup:.2f} ×", f" ± {error * 100:.1f}% " if error is not None else " ", badge("predicted"))


def _time_row(row: CauseRow, entry: CauseShare) -> tuple[str, ...]:
    width = f"width:{(entry.share or 0) * 100:.2f}%"
    bar = element("i", class_=f"bar cause-{row.cause}", style=width, aria_hidden="true") if entry.share else Html("")
    return (
        join(swatch(row.cause), row.cause),
        row.seconds,
        row.share,
        bar,
        badge(row.basis) or Html(""),
        clean(row.reason or "", 200),
    )


def _number(value: object) -> str:
    return MISSING if value is None else str(value)
