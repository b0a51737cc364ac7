"""What limits a report: a closed list, each entry with a number, the likely cause, and what to
do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ioprof.analysis.reads.storage_bytes import are_untimed, untimed_facts
from ioprof.format.run_record import FailureCode, JobKind, Summary
from ioprof.format.schema import BY_LAUNCHER
from ioprof.report.texts.catalogue.answer import untimed_text
from ioprof.report.texts.catalogue.options import JobOptions, options_of
from ioprof.report.texts.statements import (
    COMPLETE,
    INTERRUPTED,
    device,
    is_emulated,
    stopped_text,
)
from ioprof.report.texts.units import amount, clean, count, duration, percent
from ioprof.report.texts.whole_job import length, part_text, window_text

FEWEST_STEADY_STEPS: Final = 20
"""Below this many steps after warm-up, a rate or a p95 says little."""
MOST_OVERHEAD: Final = 0.01
"""Share of the job's time that recording may cost before the report says so."""
LEAST_COVERAGE: Final = 0.995
"""Share of the bytes in proc io counters that the recording must have seen. The dynamic linker's
reads of libraries, some 100 kB in a process that loads torch, are never seen."""
MOST_UNKNOWN: Final = 0.05
"""Share of the bytes whose source may stay unknown."""
MOST_CACHED: Final = 0.99
"""Share of the bytes above which the page cache, not storage, was tested."""
MOST_CLOCK_ERROR: Final = 0.01
"""Clock uncertainty over the median step above which ranks on different hosts cannot be compared
step by step."""
MOST_OTHERS: Final = 0.10
"""Share of a host's CPU time that other programs may take before rates of runs cannot be
compared."""
_UNTIMED_MAPS: Final = (
    "page faults were not recorded, or so many other page faults occurred that those waiting for"
    " readahead were only sampled"
)
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
    """What to do, in the options of the recorded job."""


def caveats(summary: Summary) -> tuple[Caveat, ...]:
    """The entries of the closed list that hold for this run, the most serious first."""
    found = (rule(summary) for rule in RULES)
    return tuple(caveat for caveat in found if caveat is not None)


def limits(summary: Summary) -> list[str]:
    """What limits the answer, in words of a list."""
    return [*(["unsure"] if summary.verdict.doubts else []), *(x.name for x in caveats(summary))]


def _incomplete(summary: Summary) -> Caveat | None:
    status = summary.run.status or "unknown"
    if status == COMPLETE or (summary.whole_job is not None and not summary.whole_job.ended):
        return None
    if status == INTERRUPTED:
        return Caveat(
            "run not complete",
            f"it was {stopped_text(summary)}",
            "Ctrl-C, or the time limit of a scheduler; all spans up to that moment are kept",
            "to see the end of the job too, record it once more with a new --out",
        )
    return Caveat(
        "run not complete",
        f"the run's status is {clean(status)} after {count(summary.steps.count)} steps",
        "the job was interrupted, failed or killed; spans up to that moment are kept",
        "read the failures above, correct them, and record the job again with a new --out",
    )


def _part_of_job(summary: Summary) -> Caveat | None:
    found = summary.whole_job
    if found is None or not window_text(summary):
        return None
    left_out = (
        f"; {count(found.steps_left_out)} steps of it whose batches were begun before are left out"
    )
    return Caveat(
        "part of the job" if found.is_part else "snapshot",
        f"the figures are of {part_text(found)}" + (left_out if found.steps_left_out else ""),
        (
            f"only the last {length(found.keep_s)} were to be kept"
            if found.is_part
            else "it was written while the job went on"
        ),
        (
            "give a longer --keep, or none, to see more; whole_job in run.json has the sums by"
            " minute"
            if found.is_part
            else "see the run folder of the recording when the job has ended"
        ),
    )


def _changed_job(summary: Summary) -> Caveat | None:
    if summary.run.changed is None:
        return None
    return Caveat(
        "changed job",
        f"not all settings are those of the script: {clean(summary.run.changed, 200)}",
        "ioprof prove made this run, to measure the gain of what a report advises",
        "to keep the change, make it in the script",
    )


def _process_killed(summary: Summary) -> Caveat | None:
    killed = [
        failure
        for failure in summary.run.failures
        if failure.code is FailureCode.KILLED and failure.signal != BY_LAUNCHER
    ]
    if not killed:
        return None
    options, workers, first = _options(summary), summary.run.workers, killed[0]
    who = "" if first.rank is None else f"rank {first.rank}: "
    return Caveat(
        "process killed",
        f"{len(killed)} process{'' if len(killed) == 1 else 'es'} killed:"
        f" {who}{clean(first.what, 300)}",
        "often memory: each loader worker holds its prefetched batches"
        + ("" if workers is None else f"; {workers} per rank here"),
        f"reduce {options.workers}, {options.prefetch} or {options.batch_size}, or give the job"
        " more memory",
    )


def others_on_the_machine(summary: Summary) -> float | None:
    """The share of the host's CPU time that other programs used during the run, if it is above
    `MOST_OTHERS`.
    """
    ratio = summary.run.others_cpu_ratio
    return ratio if ratio is not None and ratio > MOST_OTHERS else None


def _busy_machine(summary: Summary) -> Caveat | None:
    ratio = others_on_the_machine(summary)
    if ratio is None:
        return None
    return Caveat(
        "busy machine",
        f"other programs took {percent(ratio)} of the host's CPU time while the job ran",
        "other users, other jobs, or a virtual machine whose host is shared",
        "do not compare its rates with those of other runs; record again when nothing else runs on"
        " the machine",
    )


def _read_at_start(summary: Summary) -> Caveat | None:
    ratio = summary.throughput.read_at_start_ratio
    if ratio is None:
        return None
    return Caveat(
        "read at the start",
        f"the first {count(summary.steps.warmup)} steps read {percent(ratio)} of all bytes from"
        " storage, so that they count in the steady rate: without them it would be one that storage"
        " did not deliver",
        "readahead of data that fits in memory, or data read before by others",
        "record more epochs, or data larger than memory",
    )


def no_steps(summary: Summary) -> Caveat | None:
    """Why a job that came to its end has no step, and what to do."""
    was_stopped = summary.run.status == INTERRUPTED
    if summary.steps.count or summary.run.failures or was_stopped:
        return None
    if summary.run.imported_from is not None:
        return Caveat(
            "no steps",
            "no training step was found",
            "none is marked, no optimizer and no loader was called twice, and the kernels do not"
            " recur three times",
            "profile three steps or more",
        )
    if lost := summary.capture.lost:
        return Caveat(
            "no steps",
            f"no training step is among what was kept; {count(lost)} spans were lost",
            _full_disk(summary),
            "set TMPDIR to a node-local disk with more room, and record the job again",
        )
    return Caveat(
        "no steps",
        "no training step was recognised",
        "it steps no optimizer of torch and iterates no loader that is known, or does so in a"
        " process that was not recorded",
        "if it trains, wrap what gives it batches: for batch in ioprof.batches(loader)",
    )


def _few_steps(summary: Summary) -> Caveat | None:
    if found := no_steps(summary):
        return found
    steady = max(0, summary.steps.count - summary.steps.warmup)
    if steady >= FEWEST_STEADY_STEPS:
        return None
    return Caveat(
        "few steps",
        f"{count(steady)} steps after {count(summary.steps.warmup)} of warm-up; a p95 needs"
        f" {FEWEST_STEADY_STEPS} or more",
        "the run was short"
        + (
            ""
            if not summary.run.workers
            else ", or most of it was the first fill of the workers' queues"
        ),
        f"{'profile' if summary.run.imported_from else 'record a run of'}"
        f" {_options(summary).with_steps.format(summary.steps.warmup + 5 * FEWEST_STEADY_STEPS)}",
    )


def _lost_spans(summary: Summary) -> Caveat | None:
    lost, events = summary.capture.lost, summary.capture.events
    if not lost:
        return None
    return Caveat(
        "spans lost",
        f"{count(lost)} spans found no room ({percent(lost / (lost + events), 2)} of all)",
        _full_disk(summary),
        "set TMPDIR to a node-local disk with more room, or record fewer steps; steps after the"
        " first loss are left out",
    )


def _full_disk(summary: Summary) -> str:
    folder = summary.capture.folder
    where = f"the disk of {clean(folder, 60)}" if folder else "the disk"
    return f"{where} for capture files (TMPDIR) was full"


def _incomplete_reads(summary: Summary) -> Caveat | None:
    coverage = summary.capture.coverage_ratio
    if coverage is None or coverage >= LEAST_COVERAGE:
        return None
    return Caveat(
        "reads missing",
        f"{percent(coverage, 2)} of the bytes in proc io counters were seen",
        "files were read in a way that is not captured; see the list of what was not seen",
        "treat the bytes and the reads per second here as lower bounds",
    )


def _untimed_mappings(summary: Summary) -> Caveat | None:
    capture = summary.capture
    if not are_untimed(capture):
        return None
    facts = untimed_facts(capture)
    why = [
        *(["rings of io_uring were used that cannot be followed"] if facts["uring_bytes"] else []),
        *([_UNTIMED_MAPS] if facts["mapped_bytes"] else []),
    ]
    return Caveat(
        "data not timed",
        f"{untimed_text(capture)}, of {amount(capture.storage_bytes_kernel)} fetched from storage",
        "; ".join(why),
        "see the list of what was not seen; compare with a run on warm files: the difference is"
        " storage",
    )


def _unknown_sources(summary: Summary) -> Caveat | None:
    storage = summary.storage
    if not storage.bytes or storage.bytes_unknown / storage.bytes <= MOST_UNKNOWN:
        return None
    return Caveat(
        "sources unknown",
        f"{percent(storage.bytes_unknown / storage.bytes)} of the bytes,"
        f" {amount(storage.bytes_unknown)}, have no known source",
        "the file system does not say whether a read was served from memory",
        f"compare a run on files that are not in memory{_cache_option(summary, 'cold')} with one on"
        f" files just read{_cache_option(summary, 'warm')}: the difference is storage",
    )


def _only_cache(summary: Summary) -> Caveat | None:
    storage, mapped = summary.storage, summary.capture.mapped_bytes_untimed or 0
    came_otherwise = mapped >= (1 - MOST_CACHED) * storage.bytes and are_untimed(summary.capture)
    received = storage.bytes_socket + storage.bytes_pipe
    if (
        not storage.bytes
        or received > storage.bytes
        or storage.bytes_from_cache / storage.bytes < MOST_CACHED
        or came_otherwise
    ):
        return None
    return Caveat(
        "storage not tested",
        f"{percent(storage.bytes_from_cache / storage.bytes)} of the bytes read came from the page"
        " cache",
        "the dataset fits into memory and had been read or written before",
        "to test storage, evict the dataset's files from memory before the"
        f" run{_cache_option(summary, 'cold')}, or use a dataset larger than memory",
    )


def _storage_in_memory(summary: Summary) -> Caveat | None:
    found = [
        place for place in summary.storage.devices if place.kind == "memory" and place.asked_bytes
    ]
    if not found or not summary.storage.bytes_from_storage:
        return None
    place, rest = found[0], summary.storage.bytes or 0
    return Caveat(
        "storage in memory",
        f"{clean(place.mount_point, 60)} ({clean(place.file_system, 20)} on"
        f" {clean(place.device, 30)}) lies in memory, and"
        f" {percent(min(1.0, place.asked_bytes / rest) if rest else None)} of the bytes were read"
        " from it",
        "a disk in memory, or a loop device whose backing file is in memory: what is called storage"
        " above was copied from memory",
        "to test storage, put the dataset on a disk or on the file system that is to be tested",
    )


def _downloaded(summary: Summary) -> Caveat | None:
    received = summary.storage.received
    if not received:
        return None
    files, most = sum(entry.files for entry in received), received[0]
    return Caveat(
        "files from the network",
        f"{count(files)} file{'' if files == 1 else 's'} that the job read had been received during"
        f" the job: {amount(sum(entry.bytes for entry in received))}, most from"
        f" {clean(most.peer, 100)} by process {most.pid}",
        "a part of the job downloads data into a local folder; reading it then looks fast",
        "compare the rate of the peer with that of the job; to test local storage, download"
        " everything before the job",
    )


def _costly_recording(summary: Summary) -> Caveat | None:
    ratio = summary.capture.overhead_ratio
    if ratio is None or ratio <= MOST_OVERHEAD:
        return None
    each = summary.capture.ns_per_event
    return Caveat(
        "recording cost",
        f"recording took at least {percent(ratio)} of the job's time:"
        f" {count(summary.capture.events)} events"
        + ("" if each is None else f" at {duration(each / 1e9)}"),
        *(
            (
                "spans were recorded without the native library, which was not built",
                "install a C compiler and reinstall",
            )
            if summary.capture.native is False
            else (
                "many very small reads or spans relative to the work of the job",
                "subtract that share from the causes",
            )
        ),
    )


def _emulated_device(summary: Summary) -> Caveat | None:
    if not is_emulated(summary):
        return None
    return Caveat(
        "emulated device",
        f"no real accelerator: {device(summary)}; step times come from published"
        " rates, or rates derived from them",
        "the run asked for it; loader, reads and decode were real; compute, copies and exchange"
        " took the device's known times",
        "rely on the times of the input pipeline; confirm step times on the real device",
    )


def _uncertain_clocks(summary: Summary) -> Caveat | None:
    uncertainty, step = summary.clocks.uncertainty_ns, summary.steps.p50_s
    if uncertainty is None or not step or uncertainty / 1e9 / step <= MOST_CLOCK_ERROR:
        return None
    return Caveat(
        "clocks uncertain",
        f"clocks of the hosts agree to {duration(uncertainty / 1e9)},"
        f" {percent(uncertainty / 1e9 / step)} of a median step",
        "hosts were aligned over a slow or busy network, or only by wall clock",
        "compare ranks of different hosts by sums, not instant by instant; shares within a rank are"
        " not affected",
    )


def _unexplained(summary: Summary) -> Caveat | None:
    host = next((entry for entry in summary.steps.causes if entry.cause == "host"), None)
    known = summary.unexplained_ratio
    ratio = known if known is not None or host is None else host.share
    if ratio is None or ratio <= MOST_UNEXPLAINED:
        return None
    return Caveat(
        "time not explained",
        f"{percent(ratio)} of the steps' time is charged to host or loader, and nothing says what"
        " it was",
        "Python between the spans: logging, metrics, the optimizer on the CPU, garbage collection",
        (
            "put ioprof.span around the likely parts of the script"
            if summary.run.imported_from is None
            else "look at the operators and Python calls of the trace in that time"
        ),
    )


def _options(summary: Summary) -> JobOptions:
    return options_of(summary.run.job)


def _cache_option(summary: Summary, state: str) -> str:
    """The option of the built-in job that brings the page cache into a state."""
    return f" (--cache {state})" if summary.run.job is JobKind.BUILT_IN else ""


RULES: Final[tuple[Callable[[Summary], Caveat | None], ...]] = (
    _incomplete,
    _part_of_job,
    _changed_job,
    _process_killed,
    _busy_machine,
    _few_steps,
    _read_at_start,
    _lost_spans,
    _incomplete_reads,
    _untimed_mappings,
    _only_cache,
    _storage_in_memory,
    _unknown_sources,
    _downloaded,
    _costly_recording,
    _emulated_device,
    _uncertain_clocks,
    _unexplained,
)
"""The closed list. A rule returns its caveat, or None where it does not hold."""
