"""The section on storage: what is needed against what was delivered, bytes by epoch and source, the
time of a read, the slowest.
"""

import math
from typing import Final

import polars as pl

from ioprof.format.run_record import EpochReads, SlowRead, Summary
from ioprof.format.schema import SOURCES
from ioprof.report import views
from ioprof.report.page.markup import Html, element, join, table
from ioprof.report.page.sections import badge, nothing, term
from ioprof.report.page.svg import Bar, Tick, bars
from ioprof.report.path_demand import ProbedPath
from ioprof.report.texts.units import MISSING, amount, clean, count, duration, percent, rate

_MOST_EPOCHS: Final = 24
_LONGEST_PATH: Final = 40
_SOURCE_WORDS: Final = {"page_cache": "page cache", "unknown": "source unknown"}


def storage_section(
    summary: Summary,
    latencies: pl.DataFrame,
    reading_s: float | None,
    probed: ProbedPath | None = None,
) -> Html:
    """What stands below the heading. `latencies`: rows of `views.latency_bins`; `reading_s`: from
    the first read of a batch to the last; `probed` is what a path delivers by `ioprof probe`.
    """
    if not summary.storage.accesses and not summary.storage.other_accesses:
        return nothing("no read was recorded")
    return join(
        _demand(summary, probed, reading_s),
        element("h3", "Bytes by epoch and source"),
        _bytes(summary),
        element("h3", "Time of one read, by where its bytes came from"),
        _latency(summary, latencies),
        element(
            "div",
            _slowest_reads(summary.storage.slowest),
            _slowest_files(summary),
            class_="columns",
        ),
    )


def _demand(summary: Summary, probed: ProbedPath | None, wall_s: float | None) -> Html:
    """What the devices need, and what the job got while it read for `wall_s`."""
    found, demand = summary.storage, summary.demand
    delivered = [
        entry.delivered_bytes for entry in found.devices if entry.delivered_bytes is not None
    ]
    values = [
        (term("demand", "the devices need"), demand.bytes_per_s, demand.basis, "demand"),
        ("the job read", found.bytes / wall_s if wall_s else None, "measured", "asked"),
        (
            "of that from storage",
            found.bytes_from_storage / wall_s if wall_s else None,
            "measured",
            "supply",
        ),
        (
            "devices delivered, to all programs",
            sum(delivered) / wall_s if delivered and wall_s else None,
            "measured",
            "device",
        ),
    ]
    if probed is not None:
        values.append(
            (
                f"{clean(probed.path, 40)} can deliver, by ioprof probe",
                probed.bytes_per_s,
                "measured",
                "probe",
            )
        )
    known = [entry for entry in values if entry[1] is not None]
    if not known:
        return Html("")
    most = max(value or 0.0 for _, value, _, _ in known) or 1.0
    rows = (
        join(
            element("dt", label),
            element(
                "dd",
                element(
                    "i",
                    class_=f"meter {name}{' source-storage' if name == 'supply' else ''}",
                    style=f"width:{(value or 0) / most * 50:.2f}%",
                ),
                f"{amount(value)}/s ",
                badge(basis),
            ),
        )
        for label, value, basis, name in known
    )
    note = (
        f"Means over the {duration(wall_s)} from the first read of a batch to the last."
        if wall_s
        else None
    )
    reads = (
        f" The devices need {rate(demand.reads_per_s)} reads/s."
        if demand.reads_per_s is not None
        else ""
    )
    return join(
        element("h3", "Demand and supply"),
        element("dl", *rows, class_="meters"),
        element("p", f"{note or ''}{reads}", class_="note"),
    )


def _bytes(summary: Summary) -> Html:
    """Reads for batches by epoch and source; other reads apart from them."""
    found, trend = summary.storage, summary.findings.trend
    total = (found.bytes_from_storage, found.bytes_from_cache, found.bytes_unknown)
    epochs = trend.epochs if trend else ()
    most = max((sum(_of_epoch(epoch)) for epoch in epochs), default=0) or 1
    rows = [
        (
            f"epoch {epoch.epoch}",
            count(epoch.accesses),
            *map(amount, _of_epoch(epoch)),
            _sources(_of_epoch(epoch), most),
        )
        for epoch in epochs[:_MOST_EPOCHS]
    ]
    every = "batches of all epochs" if epochs else "batches"
    rows.append(
        (every, count(found.accesses), *map(amount, total), _sources(total, max(sum(total), 1)))
    )
    if found.thread_accesses:
        text = f"{amount(found.thread_bytes)}: by threads of the training process"
        rows.append(
            ("batches or not", count(found.thread_accesses), MISSING, MISSING, MISSING, text)
        )
    if found.other_accesses:
        text = f"{amount(found.other_bytes)}: libraries, start-up, checkpoints"
        rows.append(("anything else", count(found.other_accesses), MISSING, MISSING, MISSING, text))
    if found.bytes_socket or found.bytes_pipe:
        text = f"{amount(found.bytes_socket)} from sockets, {amount(found.bytes_pipe)} from pipes"
        rows.append(("from other programs", MISSING, MISSING, MISSING, MISSING, text))
    headings = ("read for", "reads", "from storage", "from page cache", "unknown", "by source")
    more = len(epochs) - _MOST_EPOCHS
    note = (
        "The bar of an epoch is as long as its bytes, against the epoch with most."
        if epochs
        else ""
    )
    note += f" {more} more epochs are not shown." if more > 0 else ""
    return join(
        element("div", table(headings, rows, frozenset({1, 2, 3, 4})), class_="workers"),
        element("p", note, class_="note") if note else None,
    )


def _of_epoch(epoch: EpochReads) -> tuple[int, int, int]:
    return epoch.bytes_from_storage, epoch.bytes_from_cache, epoch.bytes_unknown


def _sources(found: tuple[int, int, int], most: int) -> Html:
    """A bar divided by source."""
    parts = zip(("storage", "page_cache", "unknown"), found, strict=True)
    shares = [(source, number / most) for source, number in parts if number]
    bars_of = (
        element(
            "i",
            class_=f"source-{source}",
            style=f"width:{share * 100:.2f}%",
            title=f"{_word(source)} {percent(share)}",
        )
        for source, share in shares
    )
    said = ", ".join(f"{_word(source)} {percent(share)}" for source, share in shares) or "nothing"
    return element("div", *bars_of, class_="stack", role="img", aria_label=said)


def _latency(summary: Summary, found: pl.DataFrame) -> Html:
    """Bytes by the time of their read, of rows of `latency_bins`. What was not timed is a bar of
    its own, apart from the others.
    """
    binned, mapped = found.drop_nulls("bin"), summary.capture.mapped_bytes_untimed or 0
    untimed = mapped + int(found.filter(pl.col("bin").is_null())["bytes"].sum())
    why = f"{amount(untimed)} were counted and not timed"
    why += (
        f", of which {amount(mapped)} came by mapped files without a recorded page fault"
        if mapped
        else ""
    )
    if not len(binned):
        return join(
            nothing("no read was timed"),
            element("p", f"{why}.", class_="note") if untimed else None,
        )
    drawn, ticks_x, ticks_y = _latency_bars(binned, untimed, why)
    sources = set(binned["source"])
    keys = [
        element("li", element("i", class_=f"swatch source-{source}"), _word(source))
        for source in SOURCES
        if source in sources
    ]
    if untimed:
        keys.append(
            element(
                "li",
                element("i", class_="swatch untimed"),
                term("not timed"),
                f" ({amount(untimed)})",
            )
        )
    quantiles = ", ".join(
        f"{name} {duration(value)}"
        for name, value in (
            ("p50", summary.storage.read_p50_s),
            ("p95", summary.storage.read_p95_s),
            ("p99", summary.storage.read_p99_s),
        )
    )
    note = (
        f"Time of a read for a batch: {quantiles}. Both axes are logarithmic; a bar is divided by"
        " the bytes of each source."
    )
    note += f" {why}." if untimed else ""
    label = "Histogram of bytes by the time of their read and by source, both axes logarithmic."
    chart = bars(drawn, label, ticks_x, ticks_y, 190, ("bytes", "time of one read"))
    return join(element("ul", *keys, class_="keys"), chart, element("p", note, class_="note"))


def _latency_bars(
    binned: pl.DataFrame, untimed: int, why: str
) -> tuple[list[Bar], list[Tick], list[Tick]]:
    """The bars, and the ticks of both axes."""
    low, high = int(binned["bin"].min()), int(binned["bin"].max()) + 1  # type: ignore[arg-type]
    low = min(low, high - views.BINS_PER_DECADE)
    width = 1 / (high - low + (5 if untimed else 0))
    by_bin = {place: part for (place,), part in binned.group_by("bin", maintain_order=True)}
    totals = {place: int(part["bytes"].sum()) for place, part in by_bin.items()}
    edges = _decades(
        min((total for total in (*totals.values(), untimed) if total), default=1),
        max(*totals.values(), untimed, 1),
    )
    drawn = [
        Bar(
            (place - low) * width,
            width,
            _parts_of(by_bin[place], _height(totals[place], edges)),
            _text_of(place, by_bin[place]),
        )
        for place in sorted(totals)
    ]
    ticks_x = [
        ((place - low) * width, _time_at(place))
        for place in range(low, high + 1)
        if place % views.BINS_PER_DECADE == 0
    ]
    if untimed:
        drawn.append(
            Bar(
                1 - 3 * width,
                3 * width,
                (("untimed", _height(untimed, edges)),),
                f"not timed: {why}",
            )
        )
        ticks_x = [*(tick for tick in ticks_x if tick[0] < 1 - 8 * width), (1.0, "not timed")]
    step = 1 + (edges[1] - edges[0]) // 5
    ticks_y = [
        ((power - edges[0]) / (edges[1] - edges[0]), amount(10.0**power))
        for power in range(edges[0], edges[1] + 1)
        if power % step == 0
    ]
    return drawn, ticks_x, ticks_y


def _decades(least: int, most: int) -> tuple[int, int]:
    """Powers of ten: the one below the least, and the one above the most."""
    low = math.floor(math.log10(max(least, 1)))
    return low, max(low + 1, math.ceil(math.log10(max(most, 1)) + 1e-9))


def _height(number: float, edges: tuple[int, int]) -> float:
    """Where a number of bytes is on the axis; what is in sight has some height."""
    return (
        max(0.03, (math.log10(max(number, 1)) - edges[0]) / (edges[1] - edges[0]))
        if number
        else 0.0
    )


def _parts_of(part: pl.DataFrame, tall: float) -> tuple[tuple[str, float], ...]:
    """The bar of a time, divided by the bytes of each source."""
    here = dict(part.select("source", "bytes").iter_rows())
    total = sum(here.values()) or 1
    return tuple(
        (f"source-{source}", tall * here[source] / total) for source in SOURCES if here.get(source)
    )


def _text_of(place: int, part: pl.DataFrame) -> str:
    said = ", ".join(
        f"{count(row['reads'])} reads, {amount(row['bytes'])} from {_word(row['source'])}"
        for row in part.iter_rows(named=True)
    )
    return f"{_time_at(place)} to {_time_at(place + 1)}: {said}"


def _time_at(place: int) -> str:
    return duration(10 ** (place / views.BINS_PER_DECADE))


def _path(path: str | None) -> Html:
    """The end of a path, which tells files apart; all of it as a tooltip."""
    if path is None:
        return element("span", MISSING, class_="path")
    shown = clean(path, 300)
    return element(
        "span",
        shown if len(shown) <= _LONGEST_PATH else f"…{shown[1 - _LONGEST_PATH :]}",
        class_="path",
        title=shown,
    )


def _word(source: str) -> str:
    return _SOURCE_WORDS.get(source, source)


def _slowest_reads(reads: tuple[SlowRead, ...]) -> Html | None:
    """The slowest reads, each a link to its moment."""
    if not reads:
        return None
    rows = [
        (
            (
                duration(read.seconds)
                if read.start_ns is None
                else element(
                    "a",
                    duration(read.seconds),
                    href=moment_link(read.start_ns, read.start_ns + round(read.seconds * 1e9)),
                )
            ),
            _path(read.path),
            amount(read.bytes),
            _word(clean(read.source or "unknown", 20)),
            MISSING if read.step is None else str(read.step),
        )
        for read in reads
    ]
    headings = ("took", "file", "bytes", "from", "step")
    return element(
        "div", element("h3", "Slowest reads of batches"), table(headings, rows, frozenset({2, 4}))
    )


def _slowest_files(summary: Summary) -> Html | None:
    """The files whose reads took longest together."""
    files = summary.findings.reads.files
    if not files:
        return None
    total = sum(
        group.seconds for group in summary.findings.reads.groups if group.least_bytes is None
    )
    rows = [
        (
            duration(entry.seconds),
            percent(entry.seconds / total if total else None),
            _path(entry.path),
            count(entry.accesses),
            amount(entry.bytes),
            duration(entry.max_s or None),
        )
        for entry in files
    ]
    headings = ("reads took", "of all", "file", "reads", "bytes", "slowest")
    title = element("h3", "Files whose reads took longest")
    return element("div", title, table(headings, rows, frozenset({1, 3, 4, 5})))


def moment_link(start_ns: int, end_ns: int) -> str:
    """A stretch of the run in the timeline, with room on both sides, and selected."""
    room = max(end_ns - start_ns, 1000)
    edges = (max(0, start_ns - room), end_ns + room, start_ns, end_ns)
    since, until, begin, end = (f"{edge / 1e9:.7f}".rstrip("0").rstrip(".") for edge in edges)
    return f"#t={since},{until}&from={begin}&to={end}"
