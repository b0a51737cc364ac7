"""Merges the parts of one run, each recorded by one host or task, into one Trace on one clock."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final

import polars as pl

from ioprof.clock import Anchor
from ioprof.errors import RunError
from ioprof.format.run_record import (
    AttemptRecord,
    CaptureRecord,
    ClockAnchor,
    ClockRecord,
    CommandTimes,
    Failure,
    FaultRecording,
    GpuCapture,
    HostRecord,
    PartRecord,
    RunRecord,
    SampledSeries,
    merge,
)
from ioprof.format.schema import FILE_COLUMNS
from ioprof.format.trace import Trace
from ioprof.ingest.clocks.clock_alignment import ClockAlignment
from ioprof.ingest.clocks.clock_offset import Clock, Messages
from ioprof.ingest.failures import began_ns
from ioprof.ingest.job_sums import merged_jobs

_LISTS: Final = ("fault_records", "unseen_processes", "unobserved", "damaged", "collectives")
"""Fields of `CaptureRecord` whose entries are joined."""
_STATUSES: Final = ("complete", "interrupted", "failed")
_MOST_PARTS: Final = 1 << 16


@dataclass(frozen=True, eq=False)
class _Part:
    """A part and the name of its clock."""

    name: str
    trace: Trace

    @property
    def run(self) -> RunRecord:
        return self.trace.run

    @property
    def zero_ns(self) -> int:
        return self.run.clocks.zero_monotonic_ns or 0

    def clock(self) -> Clock:
        """The clock of its first host."""
        clocks = self.run.clocks
        anchors = [anchor for entry in clocks.anchors if (anchor := _anchor(entry))]
        return Clock(
            self.name,
            anchors[0] if anchors else None,
            clocks.kernel,
            max(0, clocks.monotonic_shift_ns or 0),
            clocks.wall_error_ns,
        )

    def spans(self) -> pl.DataFrame:
        """Its spans, with times on its own clock."""
        return self.trace.spans.with_columns(pl.col("start_ns", "end_ns") + self.zero_ns)


def merge_parts(parts: Sequence[Trace], name: str) -> Trace:
    """Merge the parts into the run `name`.

    `RunRecord.parts` keeps the facts of each part, `ClockRecord.ties` the clock offset estimates.
    Raises `RunError` if these cannot be parts of one run.
    """
    named = _assign_names(sorted(parts, key=_order))
    _check(named)
    named = _with_common_numbers(named)
    tables = {part.name: part.spans() for part in named}
    messages = {part.name: found for part in named[1:] if (found := _messages(named[0], part))}
    alignment = ClockAlignment([part.clock() for part in named], tables.items(), messages=messages)
    files, numbers = _one_numbering([part.trace.files for part in named])
    merged: dict[str, list[pl.DataFrame]] = {}
    for part, known in zip(named, numbers, strict=True):
        series = _own_counters(part, named).with_columns(pl.col("time_ns") + part.zero_ns)
        samples = part.trace.stacks.with_columns(pl.col("time_ns") + part.zero_ns)
        waits = ("start_ns", "end_ns", "woken_ns")
        blocks = part.trace.blocks.with_columns(pl.col(*waits) + part.zero_ns)
        tables_of_part = {
            "spans": _renumbered(alignment.align(part.name, tables[part.name]), known),
            "counters": alignment.align(part.name, series, "time_ns"),
            "stacks": alignment.align(part.name, samples, "time_ns"),
            "blocks": alignment.align(part.name, blocks, *waits),
        }
        for table, rows in tables_of_part.items():
            merged.setdefault(table, []).append(rows)
    _check_disjoint(merged["spans"])
    whole = {table: pl.concat(of_parts) for table, of_parts in merged.items()}
    return Trace(_facts(named, name, alignment), files=files, **whole)


# ---------------------------------------------------------------------------- which parts there are


def _order(part: Trace) -> tuple[int, int, str]:
    """Sort key. The part of the lowest rank comes first: its clock is the clock of the run, and its
    facts take precedence.
    """
    ranks, number = sorted(_ranks(part)), part.run.part.number if part.run.part else None
    return (
        ranks[0] if ranks else 1 << 31,
        number if number is not None else 1 << 31,
        part.run.started or "",
    )


def _ranks(part: Trace) -> set[int]:
    ranks = {process.rank for process in part.run.processes if process.role == "rank"}
    return {rank for rank in ranks if rank is not None and rank >= 0}


def _assign_names(parts: Sequence[Trace]) -> list[_Part]:
    """Name each part after its host. If several machines have the same host name ("localhost"), the
    later ones get a number.
    """
    found: list[_Part] = []
    taken: set[str] = set()
    machines: dict[str, list[str | None]] = {}
    for number, part in enumerate(parts):
        own = (part.run.hosts[0].name or "") if part.run.hosts else f"part {number}"
        kernel = part.run.clocks.kernel
        known = machines.setdefault(own, [])
        known += [kernel] if kernel not in known else []
        place = known.index(kernel)
        part = _rename_host(part, own, f"{own} ({place + 1})") if place else part
        name = own if not place else f"{own} ({place + 1})"
        name = f"{name}, task {number}" if name in taken else name
        taken.add(name)
        found.append(_Part(name, part))
    return found


def _rename_host(part: Trace, old: str, new: str) -> Trace:
    def replace_column(table: pl.DataFrame) -> pl.DataFrame:
        return table.with_columns(
            pl.col("host").cast(pl.String).replace(old, new).cast(table.schema["host"])
        )

    clocks = part.run.clocks
    run = part.run.replace(
        hosts=tuple(
            host.replace(name=new) if host.name == old else host for host in part.run.hosts
        ),
        processes=tuple(
            process.replace(host=new) if process.host == old else process
            for process in part.run.processes
        ),
        clocks=clocks.replace(
            anchors=tuple(
                entry.replace(host=new) if entry.host == old else entry for entry in clocks.anchors
            )
        ),
    )
    names = ("spans", "counters", "stacks", "blocks")
    tables = {name: replace_column(getattr(part, name)) for name in names}
    return replace(part, run=run, **tables)


def _check(parts: list[_Part]) -> None:
    if not parts:
        raise RunError(
            "there is nothing to gather; pass the run folders of all hosts: ioprof gather PART PART"
            " --out RUN"
        )
    jobs = {part.run.part.job: part.name for part in parts if part.run.part and part.run.part.job}
    if len(jobs) > 1:
        shown = _printable(", ".join(f"{name} is of {job}" for job, name in jobs.items()))
        raise RunError(
            f"these are parts of different runs: {shown}; pass the parts of one run: ioprof gather"
            " PART PART --out RUN"
        )
    holders: dict[int, str] = {}
    for part in parts:
        for rank in sorted(_ranks(part.trace)):
            if rank in holders:
                what = _printable(f"rank {rank} is in both {holders[rank]} and {part.name}")
                raise RunError(
                    f"these are separate runs, not parts of one: {what}; compare them with: ioprof"
                    " compare RUN RUN"
                )
            holders[rank] = part.name


def _check_disjoint(tables: list[pl.DataFrame]) -> None:
    processes = pl.concat(
        [spans.select("host", "rank", "pid").drop_nulls("pid").unique() for spans in tables]
    )
    for host, rank, pid in processes.filter(processes.is_duplicated()).rows():
        what = (
            f"process {pid} of rank {rank} on {host} has spans in two of them, which would count"
            " twice"
        )
        raise RunError(f"the traces cannot be merged: {what}; give each part once")


def _printable(text: str) -> str:
    """The text on one line: values of a run.json that was edited may contain control characters."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def missing_parts(parts: Iterable[Trace]) -> list[int]:
    """Numbers of the parts that the launcher started and that are missing here; empty if the parts
    are not numbered.
    """
    entries = [part.run.part for part in parts if part.run.part]
    expected = max((entry.num_parts or 0 for entry in entries), default=0)
    numbers = {entry.number for entry in entries if entry.number is not None}
    return sorted(set(range(min(expected, _MOST_PARTS))) - numbers)


# ------------------------------------------------------------------------------------------- files


def _one_numbering(tables: list[pl.DataFrame]) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """The files of all tables, one row per path, and for each table its numbers (`file`) with those
    of the whole (`number`).

    What one part does not know of a file is filled in from another; of two values the greater
    holds.
    """
    rows = (
        pl.concat(tables)
        .group_by("path", maintain_order=True)
        .agg(pl.exclude("file", "path").max())
    )
    files = rows.with_row_index("file").cast({"file": pl.Int64}).select(list(FILE_COLUMNS))
    known = files.select("path", number="file")
    return files, [
        table.unique("file", keep="first")
        .join(known, on="path", nulls_equal=True)
        .select("file", "number")
        for table in tables
    ]


def _renumbered(spans: pl.DataFrame, numbers: pl.DataFrame) -> pl.DataFrame:
    """The spans with the whole's numbers of files; one that names no file becomes null, or it would
    come to name another's.
    """
    joined = spans.join(numbers, on="file", how="left", maintain_order="left")
    return joined.with_columns(file="number").select(spans.columns)


# -------------------------------------------------------------------------------------------- facts


def _facts(parts: list[_Part], name: str, alignment: ClockAlignment) -> RunRecord:
    """The facts of the merged run."""
    first = merge([part.run for part in parts], {})
    config = merge([part.run.config for part in parts], {})
    ranks = {rank for part in parts for rank in _ranks(part.trace)}
    configured = [part.run.config.ranks or 0 for part in parts]
    codes = [part.run.exit_code for part in parts if part.run.exit_code is not None]
    processes = [
        process.replace(
            first_ns=_align(process.first_ns, part, alignment),
            last_ns=_align(process.last_ns, part, alignment),
        )
        for part in parts
        for process in part.run.processes
    ]
    return first.replace(
        name=name,
        part=None,
        status=max((part.run.status or "unknown" for part in parts), key=_badness),
        failures=tuple(
            sorted(
                (
                    _on_part(failure, part, alignment)
                    for part in parts
                    for failure in part.run.failures
                ),
                key=began_ns,
            )
        ),
        attempts=_attempts(parts, alignment),
        times=_times(parts, alignment),
        started=min((part.run.started for part in parts if part.run.started), default=None),
        exit_code=next((code for code in codes if code), 0 if codes else None),
        hosts=_hosts(parts),
        config=config.replace(ranks=max(len(ranks), *configured)),
        clocks=_clocks(parts, alignment),
        processes=tuple(processes),
        capture=_capture(parts, alignment),
        parts=tuple(_own_facts(part, first) for part in parts),
        whole_job=merged_jobs([part.run.whole_job for part in parts]),
    )


def _on_part(failure: Failure, part: _Part, alignment: ClockAlignment) -> Failure:
    return failure.replace(
        what=f"{failure.what} (on {part.name})", time_ns=_align(failure.time_ns, part, alignment)
    )


def _with_common_numbers(parts: Sequence[_Part]) -> list[_Part]:
    """The parts, where the steps and batches of each attempt begin with the same number in all."""
    firsts = _first_numbers(part.run.attempts for part in parts)
    if len(firsts) < 2:
        return list(parts)
    found = []
    for part in parts:
        spans, columns = part.trace.spans, {}
        for name in ("step", "batch"):
            number = shift = pl.col(name)
            for own, first in zip(part.run.attempts, firsts, strict=False):
                added = first[name] - getattr(own, f"first_{name}")
                shift = (
                    pl.when(number >= getattr(own, f"first_{name}"))
                    .then(number + added)
                    .otherwise(shift)
                )
            columns[name] = shift
        found.append(replace(part, trace=replace(part.trace, spans=spans.with_columns(**columns))))
    return found


def _first_numbers(attempts: Iterable[Sequence[AttemptRecord]]) -> list[dict[str, int]]:
    """Of each attempt the number of its first step and batch, the largest of all parts."""
    return [
        {
            "step": max(each.first_step for each in of_attempt if each),
            "batch": max(each.first_batch for each in of_attempt if each),
        }
        for of_attempt in zip_longest(*attempts)
    ]


def _attempts(parts: list[_Part], alignment: ClockAlignment) -> tuple[AttemptRecord, ...]:
    """The attempts of the whole job; what ended one is the first failure of it in any part."""
    firsts = _first_numbers(part.run.attempts for part in parts)
    found = []
    for number, first in enumerate(firsts):
        own = [
            (part, part.run.attempts[number]) for part in parts if number < len(part.run.attempts)
        ]
        starts = [_align(each.start_ns, part, alignment) for part, each in own]
        ends = [_align(each.end_ns, part, alignment) for part, each in own]
        failures = [_on_part(each.failure, part, alignment) for part, each in own if each.failure]
        found.append(
            AttemptRecord(
                first_step=first["step"],
                first_batch=first["batch"],
                num_steps=max(each.num_steps for _, each in own),
                start_ns=min((time for time in starts if time is not None), default=None),
                end_ns=max((time for time in ends if time is not None), default=None),
                failure=min(failures, key=began_ns, default=None),
            )
        )
    return tuple(found)


def _times(parts: list[_Part], alignment: ClockAlignment) -> CommandTimes | None:
    """From the start of the first part's command to the end of the last one's; None if a part does
    not say.
    """
    times = [part.run.times for part in parts]
    starts = [
        _align(each.start_ns if each else None, part, alignment)
        for each, part in zip(times, parts, strict=True)
    ]
    ends = [
        _align(each.end_ns if each else None, part, alignment)
        for each, part in zip(times, parts, strict=True)
    ]
    known = [
        (start, end)
        for start, end in zip(starts, ends, strict=True)
        if start is not None and end is not None
    ]
    if len(known) < len(parts):
        return None
    return CommandTimes(min(start for start, _ in known), max(end for _, end in known))


def _clocks(parts: list[_Part], alignment: ClockAlignment) -> ClockRecord:
    """Clock facts. The uncertainty is that between the parts plus the largest two within parts;
    None if one is unknown.
    """
    if len(parts) == 1:
        return alignment.facts(parts[0].run.clocks)
    found = alignment.facts(ClockRecord())
    within = [part.run.clocks.uncertainty_ns for part in parts]
    known = [
        found.uncertainty_ns,
        *sorted(max(0, bound) for bound in within if bound is not None)[-2:],
    ]
    bounds = [bound for bound in known if bound is not None]
    return found.replace(
        uncertainty_ns=(
            sum(bounds) if None not in within and found.uncertainty_ns is not None else None
        )
    )


def _own_facts(part: _Part, first: RunRecord) -> PartRecord:
    def difference(own: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in own.items() if others.get(key) != value}

    run = part.run
    return PartRecord(
        name=part.name,
        command=run.command,
        started=run.started,
        status=run.status,
        exit_code=run.exit_code,
        part=run.part,
        config=difference(run.config.to_dict(), first.config.to_dict()),
        versions=difference({**run.versions}, {**first.versions}),
        environment=difference({**run.environment}, {**first.environment}),
        faults=run.capture.faults,
        samplers=run.capture.samplers,
    )


def _badness(status: str) -> int:
    return _STATUSES.index(status) if status in _STATUSES else len(_STATUSES)


def _hosts(parts: list[_Part]) -> tuple[HostRecord, ...]:
    """Every host once. If two tasks of a host report different CPU counts or shares of other users,
    the larger value counts.
    """
    found: dict[str | None, list[HostRecord]] = {}
    for host in (host for part in parts for host in part.run.hosts):
        found.setdefault(host.name, []).append(host)
    return tuple(
        merge(records, {"cpus": max, "others_cpu_ratio": max}) for records in found.values()
    )


_COSTS: Final = (
    "ns_per_span",
    "ns_per_call",
    "ns_per_cold_span",
    "ns_per_cold_call",
    "ns_per_process",
)


def _capture(parts: list[_Part], alignment: ClockAlignment) -> CaptureRecord:
    """Capture facts: a feature counts only if all parts have it, costs are the maximum, lists are
    concatenated.
    """
    captures = [part.run.capture for part in parts]
    found = merge(captures, {**dict.fromkeys(_COSTS, max), **dict.fromkeys(_LISTS, _join)})
    sampled = [capture.sampled for capture in captures if capture.sampled]
    return found.replace(
        native=all(capture.native for capture in captures),
        library=all(capture.library for capture in captures),
        hooks=all(capture.hooks for capture in captures),
        reads=all(capture.reads for capture in captures),
        faults=_faults(parts),
        sampled=SampledSeries(
            notes=tuple(dict.fromkeys(note for series in sampled for note in series.notes)),
            damaged=sum(series.damaged or 0 for series in sampled),
            lost=sum(series.lost or 0 for series in sampled),
            unsampled={
                name: note
                for series in reversed(sampled)
                for name, note in series.unsampled.items()
            },
        ),
        gpu=_gpu(parts, alignment),
    )


def _join(lists: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Every entry once, in order: two tasks of one host may have seen the same."""
    entries = [entry for each in lists for entry in each]
    return tuple({json.dumps(entry.to_dict(), sort_keys=True): entry for entry in entries}.values())


def _faults(parts: list[_Part]) -> FaultRecording | None:
    """The facts of the first part that could not record page faults, otherwise those of the first
    part.
    """
    for part in parts:
        faults = part.run.capture.faults
        if faults and faults.reason:
            return faults.replace(reason=f"{faults.reason} (on {part.name})")
    return parts[0].run.capture.faults


def _gpu(parts: list[_Part], alignment: ClockAlignment) -> GpuCapture | None:
    found = [(part, part.run.capture.gpu) for part in parts if part.run.capture.gpu]
    windows = [
        window.replace(
            start_ns=_align(window.start_ns, part, alignment),
            end_ns=_align(window.end_ns, part, alignment),
        )
        for part, gpu in found
        for window in gpu.windows
    ]
    return (
        GpuCapture(
            windows=tuple(windows), notes=tuple(note for _, gpu in found for note in gpu.notes)
        )
        if found
        else None
    )


def _align(time_ns: int | None, part: _Part, alignment: ClockAlignment) -> int | None:
    """A time of a part, converted from its clock to that of the run."""
    return None if time_ns is None else alignment.align_time(part.name, part.zero_ns + time_ns)


def _own_counters(part: _Part, parts: list[_Part]) -> pl.DataFrame:
    """Its sampled series. Series of the host itself are dropped if an earlier part of the same host
    has them.
    """
    before = {host.name for other in parts[: parts.index(part)] for host in other.run.hosts}
    duplicated = {host.name for host in part.run.hosts} & before
    is_duplicate = pl.col("pid").is_null() & pl.col("host").cast(pl.String).is_in(list(duplicated))
    return part.trace.counters.filter(~is_duplicate)


def _messages(first: _Part, part: _Part) -> Messages:
    """Those that rank 0, in the first part, exchanged with the clock of this part."""
    clocks = part.run.clocks
    shift_ns = max(0, clocks.monotonic_shift_ns or 0)
    for found in first.run.clocks.messages:
        if found.kernel is not None and (found.kernel, max(0, found.monotonic_shift_ns or 0)) == (
            clocks.kernel,
            shift_ns,
        ):
            return found.times
    return ()


def _anchor(entry: ClockAnchor) -> Anchor | None:
    times = [
        time
        for time in (entry.before_ns, entry.wall_ns, entry.after_ns)
        if time is not None and time >= 0
    ]
    return Anchor(*times) if len(times) == 3 else None
