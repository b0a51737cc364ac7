"""A probe's result in words: the rows of its table, and how to read them. Takes what
`ioprof probe --json` prints.
"""

from collections.abc import Iterator
from typing import Any, Final

from ioprof.report.texts.units import MISSING, amount, count, duration, percent, rate

HEADINGS: Final = (
    "test",
    "mode",
    "clients",
    "per second",
    "bytes/s",
    "p50",
    "p95",
    "p99",
    "max",
    "count",
    "remarks",
)
NUMERIC: Final = frozenset(range(2, 10))
"""Columns that are aligned right."""
_ENDINGS: Final = {
    "time": "by their time",
    "bytes": "by their bytes",
    "places": "because everything was read once",
    "stopped": "by a signal",
}
_AMPLIFIED: Final = 1.2
_BUSY: Final = 0.9
"""Share of the clients in flight below which something other than the storage limited them."""
_KEPT: Final = 0.5
_WHOLE: Final = 0.95
_SATURATED: Final = 0.95


def rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """One for each level, in the order of `HEADINGS`."""
    return [_row(level) for level in found["levels"]]


def _row(level: dict[str, Any]) -> tuple[str, ...]:
    latency = level["latency"]
    return (
        level["test"],
        level["mode"],
        str(level["clients"]),
        rate(level["operations_per_s"]),
        MISSING if level["test"] == "open" else amount(level["bytes_per_s"]),
        *(duration(latency[name]) for name in ("p50_s", "p95_s", "p99_s", "max_s")),
        count(level["operations"]),
        ", ".join(_remarks(level)),
    )


def _remarks(level: dict[str, Any]) -> Iterator[str]:
    cached, operations = level["cached_operations"], level["operations"]
    if cached:
        yield (
            "all from memory"
            if cached == operations
            else f"{percent(cached / operations)} from memory"
        )
    if level["failed"]:
        yield "failed: " + ", ".join(
            f"{number:,} {name}" for name, number in level["failed"].items()
        )
    fetched = level["device_bytes"]
    if level["test"] == "sequential" and fetched is not None and fetched < _WHOLE * level["bytes"]:
        yield f"only {amount(fetched)} fetched"
    if level["stayed_bytes"]:
        yield f"{amount(level['stayed_bytes'])} stayed cached"
    if (level["kept_ratio"] or 0) > _KEPT:
        yield "O_DIRECT went through the page cache"
    if level["test"] == "random" and level["in_flight"] < _BUSY * level["clients"]:
        yield f"only {level['in_flight']:.1f} in flight"


def notes(found: dict[str, Any]) -> list[str]:
    """Sentences, the answer first."""
    kinds = (_answers, _eviction, _readahead, _missing, _budget, _harness, _limits)
    return [sentence for kind in kinds for sentence in kind(found)]


def _answers(found: dict[str, Any]) -> Iterator[str]:
    for mode in ("buffered", "direct"):
        levels = [
            level
            for level in found["levels"]
            if level["test"] == "random" and level["mode"] == mode
        ]
        if levels:
            best = max(level["operations_per_s"] for level in levels)
            enough = next(
                level for level in levels if level["operations_per_s"] >= _SATURATED * best
            )
            yield f"Random record reads, {mode}: {_rates(levels[0])}{_enough(enough, levels)}."


def _rates(level: dict[str, Any]) -> str:
    clients = "1 client" if level["clients"] == 1 else f"{level['clients']} clients"
    typical = duration(level["latency"]["p50_s"])
    return (
        f"{clients} {rate(level['operations_per_s'])}/s ({amount(level['bytes_per_s'])}/s), half of"
        f" them within {typical}"
    )


def _enough(enough: dict[str, Any], levels: list[dict[str, Any]]) -> str:
    if len(levels) == 1:
        return ""
    if enough is levels[0]:
        return "; more clients reach less than 5 % more"
    return (
        f"; {_rates(enough)}, and more clients"
        f" {'may reach more' if enough is levels[-1] else 'reach hardly more'}"
    )


def _eviction(found: dict[str, Any]) -> Iterator[str]:
    reading = [level for level in found["levels"] if level["test"] != "open"]
    unproven = [level for level in reading if level["stayed_bytes"] is None]
    if unproven:
        how = sorted({level["cached_by"] for level in unproven if level["cached_by"]})
        rest = f" Reads from memory were recognised by {' and '.join(how)}." if how else ""
        yield (
            "The files were evicted from the page cache, which cannot be verified:"
            f" {unproven[0]['stayed_by']}.{rest}"
        )
    elif reading:
        most = max(level["stayed_bytes"] for level in reading)
        how_much = f"at most {amount(most)}" if most else "nothing"
        yield (
            f"Before each level the files were evicted from the page cache, and {how_much} stayed"
            f" ({reading[0]['stayed_by']}); caches of servers and devices cannot be emptied from"
            " here."
        )


def _readahead(found: dict[str, Any]) -> Iterator[str]:
    for level in found["levels"]:
        fetched, read = level["device_bytes"], level["bytes"]
        if level["test"] == "random" and fetched and read and fetched > _AMPLIFIED * read:
            yield (
                f"{level['clients']} clients, {level['mode']}: {fetched / read:.1f} bytes were"
                " fetched for each that was read."
            )
            return


def _missing(found: dict[str, Any]) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in found["missing"]:
        reasons.setdefault((f"{entry['test']} {entry['mode']}", entry["reason"]), []).append(
            str(entry["clients"])
        )
    for (what, reason), clients in reasons.items():
        yield f"Not measured: {what} with {', '.join(clients)}: {reason}."


def _budget(found: dict[str, Any]) -> Iterator[str]:
    allowed = found["allowance"]
    time, size = duration(allowed["seconds"]), amount(allowed["bytes"])
    spent = f"Took {duration(found['seconds'])} of {time} and {amount(found['bytes'])} of {size}"
    endings = [level["ended_by"] for level in found["levels"]]
    how = ", ".join(
        f"{endings.count(name)} {words}" for name, words in _ENDINGS.items() if name in endings
    )
    more = [
        f"--{'seconds' if name == 'time' else 'max-bytes'}"
        for name in ("time", "bytes")
        if name in endings
    ]
    yield (
        f"{spent}; of {len(endings)} levels ended"
        f" {how}{f'; more with {chr(32).join(more)}' if more else ''}."
    )


def _harness(found: dict[str, Any]) -> Iterator[str]:
    cost = found["harness"]
    parts = (
        f"{duration(cost['latency_ns'] / 1e9)} within each read, taken off, and"
        f" {duration(cost['between_ns'] / 1e9)} between two"
    )
    yield f"Measuring took {parts}."


def _limits(found: dict[str, Any]) -> Iterator[str]:
    if found["scratch_bytes"]:
        yield (
            "The files had just been written: servers and devices may still have had them in their"
            " own caches."
        )
    yield (
        "A closed loop of one node at one time of day; repeat it at other times if the storage is"
        " shared."
    )
