"""The parts of the page that are not charts: verdict, tables, caveats, glossary; every number comes
from the summary.
"""

from collections.abc import Sequence
from typing import Final

import polars as pl

from ioprof.format.run_record import Capture, CauseShare, Phase, Summary
from ioprof.format.schema import CAUSES
from ioprof.report import views
from ioprof.report.page.markup import Html, element, join, table
from ioprof.report.texts.caveats import caveats
from ioprof.report.texts.epoch_statements import to_first_step
from ioprof.report.texts.prediction import replay_note
from ioprof.report.texts.statements import (
    CauseRow,
    cause_rows,
    clocks_text,
    save_statements,
    seconds,
    total_row,
    unseen,
)
from ioprof.report.texts.units import MISSING, clean, count, duration, percent, shares

CAUSE_MEANINGS: Final = {
    "compute": "The accelerator ran the model: forward, backward, optimizer.",
    "exchange": "Gradients were transferred between ranks, and compute did not hide it.",
    "straggler": (
        "The rank waited in the exchange for a slower rank; the details say what that rank did."
    ),
    "h2d": "Copies from host to device that compute did not hide.",
    "storage": (
        "The rank, or the worker that it waited for, was in a read or page fault that needed the"
        " device or the network."
    ),
    "page_cache": "The same, for reads that the operating system served from memory.",
    "decode": "The rank, or the worker that it waited for, decoded.",
    "transform": "The same for crop, resize, flip, normalise.",
    "collate": "The rank waited while samples were collated into a batch.",
    "delivery": "The batch was ready, and on its way from the worker to the rank.",
    "loader": (
        "The rank waited and no span of the batch explains it: start-up, queues, the worker between"
        " its spans."
    ),
    "validation": "The rank evaluated the model; the details say what that time went to.",
    "checkpoint": "The rank's main thread wrote a checkpoint, and compute did not hide it.",
    "gc": "Python's garbage collector ran in the rank's main thread.",
    "host": "The rest of the step: Python between the spans. It is a remainder.",
}
BASIS_MEANINGS: Final = {
    "measured": "timed while it happened",
    "derived": "computed from measured numbers",
    "emulated": "depends on a clock that replaces the accelerator",
    "predicted": "the outcome of a replay with one cost changed; its error is printed with it",
}

TERM_MEANINGS: Final = {
    "step": (
        "From one optimizer step of a rank to the next: it waits for a batch, computes, and"
        " exchanges gradients."
    ),
    "steady": (
        "Without the first steps, in which workers start and fill their queues, and without the"
        " last."
    ),
    "demand": "What storage must deliver so that the devices never wait for it.",
    "stall": "A step that took much longer than the median one.",
    "workers %": (
        "Share of the time in which batches were made, whether a rank waited for it or not."
    ),
    "gain %": (
        "How much shorter a step would be if that cause cost nothing, by a replay of the recorded"
        " pipeline; in brackets where that lies with 95 % probability."
    ),
    "busy": "Share of the time from its first batch to its last in which a worker made batches.",
    "device busy": "Share of the time in which the accelerator ran the model.",
    "batches ready": (
        "Batches that were made and that the rank had not taken yet. At 0 the rank waits."
    ),
    "I/O pressure": (
        "Share of the time in which some program of the host waited for I/O (the kernel's PSI)."
    ),
    "not timed": (
        "Bytes that the kernel counted, and of which no recorded span says when they were read."
    ),
    "p50, p95, p99": "The time below which 50, 95 and 99 percent of the values are.",
}
"""Terms of the page that are not causes."""


def section(name: str, heading: str, *children: str | None) -> Html:
    """A section with its heading."""
    return element(
        "section",
        element("h2", heading, id=f"{name}-heading"),
        *children,
        id=name,
        aria_labelledby=f"{name}-heading",
    )


def nothing(reason: str) -> Html:
    """What stands where there is nothing to draw."""
    return element("p", f"Nothing to show: {reason}.", class_="nothing")


def badge(basis: str | None) -> Html | None:
    """The word for how a number came to be."""
    return (
        element("span", basis, class_=f"badge {basis}", title=BASIS_MEANINGS.get(basis))
        if basis and basis != "unknown"
        else None
    )


def time_table(summary: Summary) -> Html:
    """The table of causes: its shares add up to 100.0."""
    rows = [
        _time_row(row, entry)
        for row, entry in zip(cause_rows(summary.steps.causes), summary.steps.causes, strict=True)
    ]
    total = total_row(summary.steps.causes)
    rows.append(("total", total.seconds, total.share, Html(""), Html(""), "all steps of all ranks"))
    headings = ["cause", "seconds", "share %", "", "basis", "note"]
    numbers = {1, 2}
    if any(entry.gain or entry.workers_share is not None for entry in summary.steps.causes):
        replayed = [(row.workers, row.gain) for row in cause_rows(summary.steps.causes)] + [
            ("", "")
        ]
        rows = [(*row[:4], *more, *row[4:]) for row, more in zip(rows, replayed, strict=True)]
        headings[4:4], numbers = [term("workers %"), term("gain %")], {1, 2, 4, 5}
    note = element("p", text, class_="note") if (text := replay_note(summary)) else None
    return element(
        "div",
        table(tuple(headings), rows, frozenset(numbers), "Time of all steps, by cause"),
        note,
        class_="causes",
    )


def rank_table(summary: Summary, steps: pl.DataFrame) -> Html | None:
    """The same for each rank, behind a fold."""
    shown = set(views.bars_of_time_by_cause(steps))
    ranks = [entry for entry in summary.steps.per_rank if entry.rank in shown]
    if len(summary.steps.per_rank) < 2:
        return None
    used = [cause for cause in CAUSES if any(entry.seconds(cause) for entry in ranks)]
    rows = [
        (
            str(entry.rank),
            count(entry.steps),
            seconds(entry.wall_s),
            *shares([entry.seconds(cause) for cause in used]),
        )
        for entry in ranks
    ]
    headings = ("rank", "steps", "seconds", *(f"{cause.replace('_', ' ')}%" for cause in used))
    return element(
        "details",
        element("summary", "Each rank as a table, of the causes that took time"),
        element("div", table(headings, rows, frozenset(range(len(headings)))), class_="dense"),
    )


def saves_section(summary: Summary, mtbf_s: float | None = None) -> Html:
    """What a checkpoint and the start of the job take, in parts that sum to them."""
    tables = []
    if found := summary.saves:
        tables.append(_parts_table("One checkpoint", found.parts))
    if start := to_first_step(summary):
        tables.append(_parts_table("From the command to the first step", start))
    if not tables:
        return nothing("no checkpoint and no start was recorded")
    lines = [
        element("p", f"{each.label}: {each.text}. ", badge(each.basis))
        for each in save_statements(summary, mtbf_s)
    ]
    return join(*lines, element("div", *tables, class_="columns"))


def _parts_table(caption: str, parts: Sequence[Phase]) -> Html:
    whole_s = sum(part.seconds for part in parts)
    rows = [
        (part.name, seconds(part.seconds), share)
        for part, share in zip(parts, shares([each.seconds for each in parts]), strict=True)
    ]
    rows.append(("total", seconds(whole_s), "100.0"))
    return table(("part", "seconds", "share %"), rows, frozenset({1, 2}), caption)


def _storage_tile(capture: Capture) -> Html:
    """Of the bytes from storage, those that were seen; of all bytes read, where nothing came from
    storage.
    """
    if capture.storage_coverage_ratio is None:
        return tile(
            percent(capture.coverage_ratio, 2), "of the bytes that the kernel counted", None
        )
    return tile(
        percent(capture.storage_coverage_ratio, 2),
        "of the bytes that the kernel fetched from storage",
        None,
    )


def completeness(summary: Summary) -> Html:
    """Capture, clocks, what was not seen, caveats."""
    capture = summary.capture
    tiles = element(
        "div",
        tile(count(capture.events), "events recorded", None),
        tile(count(capture.lost), "events lost", None),
        _storage_tile(capture),
        tile(
            MISSING if capture.ns_per_event is None else duration(capture.ns_per_event / 1e9),
            "per event",
            "measured",
        ),
        tile(
            percent(capture.overhead_ratio, 2),
            "of the job's time, at least, went into recording",
            "derived",
        ),
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
        (
            table(("caveat", "what was seen", "likely cause", "what to do"), found)
            if found
            else element("p", "No caveat applies to this run.")
        ),
    )


def term(word: str, text: str | None = None) -> Html:
    """A term with its meaning as a tooltip; `text` is shown instead of the word."""
    return element("abbr", text or word, title=TERM_MEANINGS[word])


def glossary() -> Html:
    """What the causes, the bases and other terms mean."""
    meanings = (
        join(element("dt", swatch(cause), cause), element("dd", CAUSE_MEANINGS[cause]))
        for cause in CAUSES
    )
    terms = (join(element("dt", word), element("dd", text)) for word, text in TERM_MEANINGS.items())
    bases = (
        join(element("dt", badge(word)), element("dd", text))
        for word, text in BASIS_MEANINGS.items()
    )
    return join(
        element(
            "p",
            "For every rank and step the causes add up to the step's wall time. A cause that could"
            " not be measured is –, never 0.",
        ),
        element("h3", "Causes"),
        element("dl", *meanings, class_="glossary"),
        element("h3", "How a number came to be"),
        element("dl", *bases, class_="glossary"),
        element("h3", "Other terms"),
        element("dl", *terms, class_="glossary"),
    )


def swatch(cause: str) -> Html:
    """A square in the colour of the cause."""
    return element("i", class_=f"swatch cause-{cause}", aria_hidden="true")


def tile(number: str, label: str, basis: str | None) -> Html:
    """A number with its label below."""
    return element(
        "div", element("strong", number), element("span", label, " ", badge(basis)), class_="tile"
    )


def _time_row(row: CauseRow, entry: CauseShare) -> tuple[str, ...]:
    width = f"width:{(entry.share or 0) * 100:.2f}%"
    bar = (
        element("i", class_=f"bar cause-{row.cause}", style=width, aria_hidden="true")
        if entry.share
        else Html("")
    )
    return (
        join(swatch(row.cause), element("abbr", row.cause, title=CAUSE_MEANINGS[row.cause])),
        row.seconds,
        row.share,
        bar,
        badge(row.basis) or Html(""),
        ". ".join(note for note in (row.detail, clean(row.reason or "", 200)) if note),
    )
