"""What the reports say beside the table of causes: one list of facts, worded once, for the terminal and for the page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ioprof.analysis.result import CauseShare, Overlap, Summary
from ioprof.report.units import MISSING, amount, clean, count, duration, percent, rate, shares

COMPLETE: Final = "complete"
"""The `status` of a run that came to its end."""

_MOST_DEVICES: Final = 4  # in a report; summary.json has all
_OVERLAP_NAMES: Final = {"h2d": "copies to the device", "storage": "reads", "decode": "decode", "communication": "exchange"}


@dataclass(frozen=True)
class Fact:
    """One line of a report."""

    label: str
    text: str
    basis: str | None = None
    """How the numbers came to be, where one word holds for all of them; one of `ioprof.schema.BASES`."""


@dataclass(frozen=True)
class CauseRow:
    """One row of the table of causes, as printed."""

    cause: str
    seconds: str
    share: str
    basis: str
    reason: str | None


def facts(summary: Summary) -> tuple[Fact, ...]:
    """The lines below the table of causes, in the order in which every report shows them."""
    return (
        _throughput(summary),
        _steps(summary),
        _overlap(summary),
        _storage(summary),
        _reads(summary),
        *_devices(summary),
        *_stalls(summary),
        _demand(summary),
        _capture(summary),
        Fact("clocks", clocks_text(summary)),
    )


def cause_rows(causes: Sequence[CauseShare]) -> tuple[CauseRow, ...]:
    """The table of causes with decimals that add up: the shares to 100.0, if any cause took time."""
    percentages = shares([entry.share for entry in causes])
    return tuple(
        CauseRow(entry.cause, seconds(entry.seconds), share, "" if entry.seconds is None else entry.basis, entry.reason)
        for entry, share in zip(causes, percentages, strict=True)
    )


def total_row(causes: Sequence[CauseShare]) -> CauseRow:
    """The last row of that table."""
    known = [entry.seconds for entry in causes if entry.seconds is not None]
    return CauseRow("total", seconds(sum(known) if known else None), "100.0" if sum(known) > 0 else MISSING, "", None)


def seconds(value: float | None) -> str:
    """A column of seconds: three decimals, because the sum of many steps is compared with single reads."""
    return MISSING if value is None else f"{value:,.3f}"


def failures(summary: Summary) -> tuple[str, ...]:
    """What went wrong with the run, one sentence each; empty if it came to its end."""
    status = str(summary.run.get("status") or "unknown")
    said = first_of([clean(_failure(entry), 300) for entry in summary.run.get("failures") or ()])
    if status == COMPLETE and not said:
        return ()
    return (f"the run did not complete (status: {clean(status)}); the numbers cover what was recorded", *said)


def unseen(summary: Summary) -> tuple[str, ...]:
    """What the run did and the recording cannot show, one sentence each."""
    return first_of([clean(sentence, 300) for sentence in summary.capture.not_seen])


def first_of(sentences: Sequence[str], limit: int = 20) -> tuple[str, ...]:
    """The sentences, or the first `limit` of them and how many more there are."""
    more = len(sentences) - limit
    return (*sentences[:limit], f"and {more:,} more") if more > 0 else tuple(sentences)


def title(summary: Summary) -> str:
    """The run's name, safe to show."""
    return clean(summary.run.get("name") or "run")


def setting(summary: Summary) -> str:
    """One line: dataset, loader, device, ranks, workers, batch size."""
    run = summary.run
    said = (
        dataset(run),
        _named(run, "loader", "{} loader"),
        device(summary),
        _plural(run.get("ranks"), "rank"),
        _plural(run.get("workers"), "worker") + (" per rank" if run.get("workers") else ""),
        _named(run, "batch_size", "batch {}"),
    )
    return ", ".join(text for text in said if text)


def dataset(run: dict[str, Any]) -> str:
    """The dataset's name, and its layout and image where the run recorded them."""
    value = run.get("dataset")
    if not isinstance(value, dict):
        return clean(value) if value else ""
    image = value.get("image")
    words = (value.get("name"), value.get("layout"), image.get("transform") if isinstance(image, dict) else image)
    return " ".join(clean(word, 40) for word in words if word)


def device(summary: Summary) -> str:
    """The device; an emulated one is called so."""
    name = clean(summary.run.get("device") or "")
    return f"emulated device {name.removeprefix('emulated:')}" if is_emulated(summary) and name else name


def is_emulated(summary: Summary) -> bool:
    """Whether the accelerator was a clock."""
    return summary.run.get("device_basis") == "emulated"


def with_basis(fact: Fact) -> str:
    """The fact's text, with its basis behind it unless it was measured or has none."""
    return fact.text if fact.basis in (None, "measured", "unknown") else f"{fact.text} ({fact.basis})"


def clocks_text(summary: Summary) -> str:
    """How the clocks were brought together, and how far that can be trusted."""
    nanoseconds = summary.clocks.uncertainty_ns
    known = "no uncertainty" if nanoseconds == 0 else f"uncertainty {duration((nanoseconds or 0) / 1e9)}"
    bound = "uncertainty not known" if nanoseconds is None else known
    return f"{clean(summary.clocks.method, 120)}; {bound}"


def _throughput(summary: Summary) -> Fact:
    found = summary.throughput
    if found.samples_per_s is None and found.steady_samples_per_s is None:
        return Fact("throughput", "not known: no step was recorded, or no batch size")
    text = f"{rate(found.steady_samples_per_s)} samples/s steady, {rate(found.samples_per_s)} with warm-up"
    if found.device_samples_per_s:
        own = found.device_samples_per_s
        reached = f" ({percent(found.steady_samples_per_s / own)} reached)" if found.steady_samples_per_s is not None else ""
        text += f"; the devices alone: {rate(own)}{_device_basis(summary)}{reached}"
    return Fact("throughput", text, found.basis)


def _device_basis(summary: Summary) -> str:
    return ", emulated" if is_emulated(summary) and summary.throughput.basis != "emulated" else ""


def _steps(summary: Summary) -> Fact:
    steps = summary.steps
    text = (
        f"{count(steps.count)} per rank, {count(steps.warmup)} of them warm-up; "
        f"mean {duration(steps.mean_s)}, p50 {duration(steps.p50_s)}, p95 {duration(steps.p95_s)}"
    )
    return Fact("steps", text, "emulated" if is_emulated(summary) else "measured")


def _overlap(summary: Summary) -> Fact:
    known = {name: summary.overlap[name] for name in _OVERLAP_NAMES if name in summary.overlap}
    said = [_overlap_text(name, entry) for name, entry in known.items() if entry.hidden_ratio is not None]
    bases = {entry.basis for entry in known.values() if entry.hidden_ratio is not None}
    text = "hidden behind compute: " + ", ".join(said) if said else "nothing to compare: no activity beside compute was recorded"
    return Fact("overlap", text, "emulated" if "emulated" in bases else next(iter(sorted(bases)), None))


def _overlap_text(name: str, entry: Overlap) -> str:
    return f"{_OVERLAP_NAMES[name]} {percent(entry.hidden_ratio)} of {duration(entry.total_s)}"


def _storage(summary: Summary) -> Fact:
    storage = summary.storage
    if not storage.accesses:
        return Fact("storage", "no read was recorded")
    sources = (storage.bytes_from_storage, storage.bytes_from_cache, storage.bytes_unknown)
    names = ("storage", "page cache", "unknown")
    split = ", ".join(f"{share}% {name}" for share, name in zip(shares(sources), names, strict=True)) if sum(sources) else "no byte"
    others = f"; {amount(storage.other_bytes)} more were read for other things" if storage.other_bytes else ""
    return Fact("storage", f"{count(storage.accesses)} accesses, {amount(storage.bytes)}: {split}{others}", "measured")


def _reads(summary: Summary) -> Fact:
    storage = summary.storage
    text = f"p50 {duration(storage.read_p50_s)}, p95 {duration(storage.read_p95_s)}, p99 {duration(storage.read_p99_s)}"
    return Fact("one read", text if storage.accesses else "no read was recorded", "measured" if storage.accesses else None)


def _devices(summary: Summary) -> Iterator[Fact]:
    for found in summary.storage.devices[:_MOST_DEVICES]:
        asked = f"{amount(found.asked_bytes)} asked for"
        bound = "at most " if found.is_at_most else ""
        if found.delivered_bytes is None:
            said = f"{asked}; what was delivered is not known: {clean(found.reason or MISSING, 200)}"
        else:
            said = f"{asked}, {bound}{amount(found.delivered_bytes)} delivered, to any program"
        where = f"{clean(found.file_system, 20)} at {clean(found.mount_point, 40)}, {clean(found.kind, 10)}"
        yield Fact("device", f"{clean(found.device, 40)} ({where}): {said}", "measured")


def _stalls(summary: Summary) -> Iterator[Fact]:
    for found in summary.storage.stalls[:_MOST_DEVICES]:
        if found.some_s is not None and found.full_s is not None:
            held = f"some task {duration(found.some_s)}, all tasks {duration(found.full_s)} of {duration(found.wall_s)}"
            yield Fact("held by I/O", f"{held}, any program of {clean(found.host, 40)}", "measured")


def _demand(summary: Summary) -> Fact:
    demand = summary.demand
    if demand.bytes_per_s is None:
        return Fact("demand", "not known: no reads, or no rate to hold them against")
    text = (
        f"{amount(demand.bytes_per_s)}/s in {rate(demand.reads_per_s)} reads/s "
        f"keep the devices busy at {rate(demand.at_samples_per_s)} samples/s"
    )
    return Fact("demand", text, demand.basis)


def _capture(summary: Summary) -> Fact:
    capture = summary.capture
    seen = (
        "coverage not known"
        if capture.coverage_ratio is None
        else f"{percent(capture.coverage_ratio, 2)} of the kernel's byte count"
    )
    cost = (
        "cost not known"
        if capture.overhead_ratio is None
        else f"cost at least {percent(capture.overhead_ratio, 2)} of the job's time"
    )
    each = "" if capture.ns_per_event is None else f" ({duration(capture.ns_per_event / 1e9)} per event)"
    return Fact("capture", f"{count(capture.events)} events, {count(capture.lost)} lost; {seen}; {cost}{each}")


def _failure(entry: object) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    rank, what = entry.get("rank"), entry.get("what", entry)
    return str(what) if rank is None else f"rank {rank}: {what}"


def _named(run: dict[str, Any], key: str, form: str) -> str:
    return form.format(clean(run[key])) if run.get(key) is not None else ""


def _plural(number: object, word: str) -> str:
    return "" if number is None else f"{clean(number)} {word}{'' if number == 1 else 's'}"
