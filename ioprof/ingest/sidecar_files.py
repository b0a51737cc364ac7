"""Files in a spool folder other than the capture files of processes: page faults, samples, settings
of the job.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from ioprof.clock import Anchor
from ioprof.format.perf import HEADER_BYTES, READAHEAD, SUFFIX
from ioprof.format.run_record import (
    ConfigRecord,
    Damage,
    FaultRecord,
    LoaderRecord,
    SampledSeries,
    Unobserved,
    UnseenProcess,
    merge_loaders,
)
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import empty_table
from ioprof.ingest.appended_files import Fold
from ioprof.ingest.collectives.files import read_collective_files
from ioprof.ingest.collectives.spans import Collectives, collectives_of
from ioprof.ingest.counters import Counters, SampledProcess, fold_counters, read_counters
from ioprof.ingest.numbering import Numbering
from ioprof.ingest.page_faults.faults import (
    Faults,
    fold_faults,
    read_faults,
    waits_for_calls,
)
from ioprof.ingest.process_cpus import HOOKS_NS, KEPT_DATA, THREAD_POOLS
from ioprof.ingest.rings import Process, readahead_calls
from ioprof.ingest.stacks import THREAD_NAMES, fold_stacks, read_stacks
from ioprof.ingest.untrusted_values import damage_facts, lines_of, unreadable

FOLDS: Final[dict[str, tuple[Fold, int]]] = {
    "counters-*.jsonl": (fold_counters, 0),
    "stacks-*.bin": (fold_stacks, 0),
    f"*{SUFFIX}": (fold_faults, HEADER_BYTES),
}
"""The files of a spool whose oldest part can be dropped while they are written: by pattern, how,
and the bytes of their header."""

LAUNCHED: Final = "launched"
"""Key of the facts that `ioprof.instrument.identity.launch_facts` records."""
_OF_LOADER: Final = ("dataset", "batch_size", "workers", "prefetch", "persistent_workers")
"""Settings in run.json that are those of a loader."""


@dataclass
class SidecarData:
    """What the recorders outside the processes of the job wrote; times are those of the hosts."""

    spans: list[tuple[str, pl.DataFrame]]
    anchors: list[tuple[str, Anchor | None]]
    counters: pl.DataFrame
    fault_records: tuple[FaultRecord, ...]
    sampled: SampledSeries
    unseen_processes: tuple[UnseenProcess, ...]
    damaged: list[Damage]
    stacks: pl.DataFrame
    sampled_processes: tuple[SampledProcess, ...] = ()
    collectives: tuple[Collectives, ...] = ()
    """Apart from `spans`, since some of them may have been recorded by other means too."""


def read_sidecar_files(folder: Path, processes: list[Process], numbering: Numbering) -> SidecarData:
    """Read the perf files and samples of a spool folder. Ranks come from `processes`, file ids from
    `numbering`.
    """
    ranks = {
        (process.host, process.pid): process.rank
        for process in processes
        if process.rank is not None
    }
    faults = [
        (path.name, read_faults(path, numbering.file)) for path in sorted(folder.glob(f"*{SUFFIX}"))
    ]
    has_calls = (folder / READAHEAD).exists()  # else no undecided fault can have waited for one
    calls = _readahead_calls(processes, numbering, faults if has_calls else ())
    host = pl.col("host").cast(pl.String)
    counters = read_counters(folder, ranks)
    damaged = [entry for name, found in faults for entry in damage_facts(name, found.damage)]
    damaged += unreadable(
        path
        for pattern in ("facts-*.jsonl", "clocks-*.jsonl")
        for path in sorted(folder.glob(pattern))
    )
    stacks, damaged_stacks = read_stacks(folder, processes)
    return SidecarData(
        spans=[
            (found.host, _fill_ranks(table, ranks))
            for _, found in faults
            if found.host
            for table in (
                found.spans,
                waits_for_calls(found.undecided, calls.filter(host == found.host)),
            )
        ],
        anchors=[(found.host, found.anchor) for _, found in faults if found.host],
        counters=counters.table,
        fault_records=tuple(found.facts for _, found in faults),
        sampled=SampledSeries.of(
            {"notes": list(counters.notes), "damaged": counters.damaged, "lost": counters.lost}
        ),
        unseen_processes=tuple(
            _unseen(faults, counters, {(process.host, process.pid) for process in processes})
        ),
        damaged=damaged + damaged_stacks,
        stacks=stacks,
        sampled_processes=counters.processes,
        collectives=tuple(collectives_of(read_collective_files(folder), processes)),
    )


def _readahead_calls(
    processes: list[Process], numbering: Numbering, faults: Iterable[tuple[str, Faults]]
) -> pl.DataFrame:
    """The calls that may explain the undecided faults, of their processes."""
    which = {
        (found.host, pid)
        for _, found in faults
        for pid in found.undecided["pid"].unique().to_list()
    }
    captures = [
        capture
        for process in processes
        if (process.host, process.pid) in which
        for capture in process.captures
    ]
    calls = [readahead_calls(capture, numbering) for capture in captures]
    return pl.concat([empty_table(SPAN_COLUMNS), *calls])


def _unseen(
    faults: list[tuple[str, Faults]], counters: Counters, captured: set[tuple[str, int]]
) -> Iterator[UnseenProcess]:
    """Processes for which the spool was not there, and those that called execve and did not load
    the capture library.
    """
    unseeing = [
        each
        for each in counters.processes
        if not each.sees_spool and (each.host, each.pid) not in captured
    ]
    hidden = {(each.host, each.pid): each.command for each in unseeing}
    yield from (
        UnseenProcess(host, pid, name, sees_spool=False)
        for (host, pid), name in sorted(hidden.items())
    )
    tables = [found.processes.filter(~pl.col("captured")) for _, found in faults if found.host]
    rows = pl.concat(tables).iter_rows(named=True) if tables else iter(())
    for row in rows:
        if (row["host"], row["pid"]) not in captured | hidden.keys():
            yield UnseenProcess(
                host=row["host"], pid=row["pid"], name=row["executable"] or row["name"]
            )


def _fill_ranks(spans: pl.DataFrame, ranks: dict[tuple[str, int], int]) -> pl.DataFrame:
    """Set the rank of spans that have none to the rank of their process."""
    if spans.is_empty() or not ranks:
        return spans
    known = pl.DataFrame(
        [(host, pid, rank) for (host, pid), rank in ranks.items()],
        schema={"host": spans.schema["host"], "pid": pl.Int32(), "of_process": pl.Int32()},
        orient="row",
    )
    joined = spans.join(known, on=["host", "pid"], how="left", maintain_order="left")
    return joined.with_columns(rank=pl.coalesce("rank", "of_process")).drop("of_process")


@dataclass(frozen=True)
class JobFacts:
    """What the processes of a job wrote of it."""

    config: ConfigRecord
    loaders: tuple[LoaderRecord, ...]
    unobserved: tuple[Unobserved, ...]
    """Hooks that failed."""


def read_job_facts(folder: Path, processes: list[Process]) -> JobFacts:
    """What the `facts-*.jsonl` files say that the processes wrote.

    If a setting occurs several times, the first value counts; libraries are collected, and of
    shards the most count. Settings of a loader are those of the one that the job trains from: one
    to validate from may begin before it (Lightning's sanity check). See
    `ioprof.instrument.hooks.state`.
    """
    config: dict[str, Any] = {}
    libraries: dict[str, None] = {}
    unobserved = []
    loaders: list[LoaderRecord] = []
    num_ranks = len({process.rank for process in processes} - {None})
    for path in sorted(folder.glob("facts-*.jsonl")):
        for facts in filter(None, map(_object, lines_of(path))):
            if isinstance(launched := facts.get(LAUNCHED), dict):
                num_ranks = max(num_ranks, _count(launched.get("ranks")))
            elif "unobserved" in facts:
                unobserved.append(Unobserved.of(facts))
            elif isinstance(loader := facts.get("made_loader"), dict):
                loaders.append(LoaderRecord.of(loader))
            elif "library" in facts:
                libraries[str(facts["library"])] = None
            elif isinstance(facts.get("shards"), int):
                config["shards"] = max(facts["shards"], config.get("shards", 0))
            elif not {THREAD_POOLS, THREAD_NAMES, KEPT_DATA, HOOKS_NS} & facts.keys():
                config = {**facts, **config}
    if libraries:
        config["libraries"] = list(libraries)
    merged = merge_loaders(loaders)
    if (
        trained := next((loader for loader in merged if loader.is_trained_from), None)
    ) is not None and "workers" in config:
        config |= {name: getattr(trained, name) for name in _OF_LOADER}
    record = ConfigRecord.of({"ranks": num_ranks, **config} if num_ranks else config)
    return JobFacts(record, merged, tuple(unobserved))


def read_restarts(folder: Path) -> dict[tuple[str, int], int]:
    """How often the launcher of each process had started the ranks again, by host and process
    id, where that is not 0.
    """
    found: dict[tuple[str, int], int] = {}
    for path in sorted(folder.glob("facts-*.jsonl")):
        for line in lines_of(path):
            launched = _object(line).get(LAUNCHED) if LAUNCHED.encode() in line else None
            if isinstance(launched, dict) and (restarts := _count(launched.get("restarts"))):
                found[str(launched.get("host")), _count(launched.get("pid"))] = restarts
    return found


def _count(value: object) -> int:
    """A number that a process wrote, within what a job can have; 0: it is none."""
    return value if isinstance(value, int) and 0 < value < 1 << 31 else 0


def _object(line: bytes) -> dict[str, Any]:
    """The JSON object in a line; empty if the line is incomplete because its process was killed."""
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
