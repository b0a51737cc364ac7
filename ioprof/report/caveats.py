"""What a reader must know before believing a report: a closed list, each entry with a number, the likely cause, and what to do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ioprof.analysis.observed import PAGEABLE
from ioprof.analysis.result import Summary
from ioprof.report.facts import COMPLETE, device, failures, is_emulated
from ioprof.report.units import amount, clean, count, duration, percent

FEWEST_STEADY_STEPS: Final = 20
"""Below this many steps after warm-up, a rate or a p95 is an anecdote."""
MOST_OVERHEAD: Final = 0.01
"""Share of the job's time that recording may cost before the report says so."""
LEAST_COVERAGE: Final = 0.995
"""Share of the bytes counted by the kernel that the recording must have seen. What the dynamic linker reads of libraries, some
100 kB in a process that loads torch, is never seen, and would be said of every short job."""
MOST_UNKNOWN: Final = 0.05
"""Share of the bytes whose source may stay unknown."""
MOST_CACHED: Final = 0.99
"""Share of the bytes above which the page cache, not storage, was tested."""
MOST_CLOCK_ERROR: Final = 0.01
"""Clock uncertainty over the median step above which ranks on different hosts cannot be compared step by step."""
MOST_OTHERS: Final = 0.10
"""Share of a host's CPU time that other programs may take before rates of runs cannot be compared."""
MOST_UNEXPLAINED: Final = 0.10
"""Share of the time charged to `host`, which is what remains, above which the report says so."""


@dataclass(frozen=True)
class Caveat:
    """One thing that limits what the report proves."""

    name: str
    seen: str
    """What was seen, with the number."""
    cause: str
    """Why, most likely."""
    remedy: str
    """What to do, knowing the flags that this run already used."""


def caveats(summary: Summary) -> tuple[Caveat, ...]:
    """The entries of the closed list that hold for this run, the gravest first."""
    found = (rule(summary) for rule in RULES)
    return tuple(caveat for caveat in found if caveat is not None)


def _incomplete(summary: Summary) -> Caveat | None:
    status = str(summary.run.get("status") or "unknown")
    if status == COMPLETE:
        return None
    return Caveat(
        "run not complete",
        f"the run's status is {clean(status)} after {count(summary.steps.count)} steps",
        "the job was interrupted, failed or killed; spans up to that moment are kept",
        "read the failures above, mend them, and run it again with a new --out",
    )


def _process_killed(summary: Summary) -> Caveat | None:
    said = [text for text in failures(summary)[1:] if "kill" in text.lower()]
    if not said:
        return None
    return Caveat(
        "process killed",
        f"{len(said)} process{'' if len(said) == 1 else 'es'} killed: {said[0]}",
        "often memory: each loader worker holds its prefetched batches" + _in_use(summary, "workers", "; {} per rank here"),
        "use fewer --workers or a smaller --batch-size, or give the job more memory",
    )


def others_on_the_machine(summary: Summary) -> float | None:
    """The share of the host's CPUs that others used during the run, if it is worth a word."""
    ratio = summary.run.get("others_cpu_ratio")
    return ratio if isinstance(ratio, float) and ratio > MOST_OTHERS else None


def _busy_machine(summary: Summary) -> Caveat | None:
    ratio = others_on_the_machine(summary)
    if ratio is None:
        return None
    return Caveat(
        "busy machine",
        f"other programs took {percent(ratio)} of the host's CPU time while the job ran",
        "other users, other jobs, or a virtual machine whose host is shared",
        "do not compare its rates with those of another run before both had the machine to themselves",
    )


def _few_steps(summary: Summary) -> Caveat | None:
    steady = max(0, summary.steps.count - summary.steps.warmup)
    if steady >= FEWEST_STEADY_STEPS:
        return None
    return Caveat(
        "few steps",
        f"{count(steady)} steps after {count(summary.steps.warmup)} of warm-up; a p95 needs {FEWEST_STEADY_STEPS} or more",
        "the run was short, or most of it went into filling the workers' queues",
        f"run at least --steps {summary.steps.warmup + 5 * FEWEST_STEADY_STEPS}",
    )


def _lost_spans(summary: Summary) -> Caveat | None:
    lost, events = summary.capture.lost, summary.capture.events
    if not lost:
        return None
    return Caveat(
        "spans lost",
        f"{count(lost)} spans found no room ({percent(lost / (lost + events), 2)} of all)",
        "the place for capture files was full or too small",
        "point TMPDIR at a node-local disk with more room, or record fewer steps; time of lost spans is charged to loader or host",
    )


def _incomplete_reads(summary: Summary) -> Caveat | None:
    coverage = summary.capture.coverage_ratio
    if coverage is None or coverage >= LEAST_COVERAGE:
        return None
    return Caveat(
        "reads missing",
        f"{percent(coverage, 2)} of the bytes that the kernel counted were seen",
        "something read files by a way that this capture does not see; compare the list of what was not seen",
        "treat the bytes and the reads per second here as lower bounds",
    )


def _unknown_sources(summary: Summary) -> Caveat | None:
    storage = summary.storage
    if not storage.bytes or storage.bytes_unknown / storage.bytes <= MOST_UNKNOWN:
        return None
    return Caveat(
        "sources unknown",
        f"{percent(storage.bytes_unknown / storage.bytes)} of the bytes read, {amount(storage.bytes_unknown)}, may be from either",
        "the file system does not say whether a read was served from memory",
        "compare a run on evicted files with one on files just read: the difference is storage",
    )


def _only_cache(summary: Summary) -> Caveat | None:
    storage = summary.storage
    if not storage.bytes or storage.bytes_from_cache / storage.bytes < MOST_CACHED:
        return None
    return Caveat(
        "storage not tested",
        f"{percent(storage.bytes_from_cache / storage.bytes)} of the bytes read came from the page cache",
        "the dataset fits into memory and had been read before"
        + _in_use(summary, "loader", " by the {} loader or by whatever wrote it"),
        "to test storage, evict the dataset's files from memory before the run, or use a dataset larger than memory",
    )


def _costly_recording(summary: Summary) -> Caveat | None:
    ratio = summary.capture.overhead_ratio
    if ratio is None or ratio <= MOST_OVERHEAD:
        return None
    each = summary.capture.ns_per_event
    return Caveat(
        "recording cost",
        f"recording took at least {percent(ratio)} of the job's time: {count(summary.capture.events)} events"
        + ("" if each is None else f" at {duration(each / 1e9)}"),
        "many very small reads, or spans recorded without the native library",
        "install a C compiler and reinstall if the native library was not built; otherwise take that share off the smaller causes",
    )


def _emulated_device(summary: Summary) -> Caveat | None:
    if not is_emulated(summary):
        return None
    return Caveat(
        "emulated device",
        f"the accelerator was a clock: {device(summary)}",
        "the run asked for it; loader, reads and decode were real; compute, copies and exchange took the device's known times",
        "believe the input side; confirm step times on the real device before buying anything",
    )


def _uncertain_clocks(summary: Summary) -> Caveat | None:
    uncertainty, step = summary.clocks.uncertainty_ns, summary.steps.p50_s
    if uncertainty is None or not step or uncertainty / 1e9 / step <= MOST_CLOCK_ERROR:
        return None
    return Caveat(
        "clocks uncertain",
        f"clocks of the hosts agree to {duration(uncertainty / 1e9)}, {percent(uncertainty / 1e9 / step)} of a median step",
        "hosts were aligned over a slow or busy network, or only by wall clock",
        "compare ranks of different hosts by sums, not instant by instant; shares within a rank are not affected",
    )


def _pageable_copies(summary: Summary) -> Caveat | None:
    copies = next((entry for entry in summary.steps.causes if entry.cause == "h2d"), None)
    if copies is None or copies.seconds is None or PAGEABLE not in (copies.reason or ""):
        return None
    return Caveat(
        "copies from pageable memory",
        str(copies.reason),
        "the batch lies in ordinary memory, which the driver first copies into a page-locked buffer of its own",
        "set pin_memory=True in the DataLoader, and copy with .to(device, non_blocking=True)",
    )


def _unexplained(summary: Summary) -> Caveat | None:
    host = next((entry for entry in summary.steps.causes if entry.cause == "host"), None)
    if host is None or host.share is None or host.share <= MOST_UNEXPLAINED:
        return None
    return Caveat(
        "time not explained",
        f"{percent(host.share)} of the steps' time is charged to host, which is what no span covers",
        "Python between the spans: logging, metrics, the optimizer on the CPU, garbage collection",
        "put ioprof.span around the suspects in the script",
    )


def _in_use(summary: Summary, flag: str, form: str) -> str:
    value = summary.run.get(flag)
    return "" if value is None else form.format(clean(value, 20))


RULES: Final[tuple[Callable[[Summary], Caveat | None], ...]] = (
    _incomplete,
    _process_killed,
    _busy_machine,
    _few_steps,
    _lost_spans,
    _incomplete_reads,
    _only_cache,
    _unknown_sources,
    _costly_recording,
    _emulated_device,
    _uncertain_clocks,
    _pageable_copies,
    _unexplained,
)
"""The closed list. A rule returns its caveat, or null where it does not hold."""
