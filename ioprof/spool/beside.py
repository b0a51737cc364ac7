"""What a job left beside the capture files of its processes: page faults, samples, settings."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ioprof.clock import Anchor
from ioprof.perf import SUFFIX
from ioprof.spool.counters import read_counters
from ioprof.spool.faults import Faults, read_faults
from ioprof.spool.numbering import Numbering
from ioprof.spool.rings import Process
from ioprof.spool.values import damage_facts


@dataclass
class Beside:
    """What was recorded of the job from outside of its processes; times are those of the hosts."""

    spans: list[tuple[str, pl.DataFrame]]
    anchors: list[tuple[str, Anchor | None]]
    counters: pl.DataFrame
    facts: dict[str, Any]
    """What goes into `run["capture"]`."""
    damaged: list[dict[str, str]]


def read_beside(folder: Path, processes: list[Process], numbering: Numbering) -> Beside:
    """The perf files and samples in a spool folder, with the ranks of `processes`, and files numbered by `numbering`."""
    ranks = {(process.host, process.pid): process.rank for process in processes if process.rank is not None}
    faults = [(path.name, read_faults(path, numbering.file)) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    counters = read_counters(folder, ranks)
    facts = {
        "fault_records": [found.facts for _, found in faults],
        "sampled": {"notes": list(counters.notes), "damaged": counters.damaged, "lost": counters.lost},
        "unseen_processes": _unseen(faults, {(process.host, process.pid) for process in processes}),
    }
    damaged = [entry for name, found in faults for entry in damage_facts(name, found.damage)]
    return Beside(
        spans=[(found.host, _ranked(found.spans, ranks)) for _, found in faults if found.host],
        anchors=[(found.host, found.anchor) for _, found in faults if found.host],
        counters=counters.table,
        facts=facts,
        damaged=damaged,
    )


def _unseen(faults: list[tuple[str, Faults]], captured: set[tuple[str, int]]) -> list[dict[str, Any]]:
    """Processes that ran a program of their own, into which the capture library was not loaded."""
    tables = [found.processes.filter(~pl.col("captured")) for _, found in faults if found.host]
    rows = pl.concat(tables).iter_rows(named=True) if tables else iter(())
    return [
        {"host": row["host"], "pid": row["pid"], "name": row["executable"] or row["name"]}
        for row in rows
        if (row["host"], row["pid"]) not in captured
    ]


def _ranked(spans: pl.DataFrame, ranks: dict[tuple[str, int], int]) -> pl.DataFrame:
    """The spans, each with the rank of its process where it has none."""
    if spans.is_empty() or not ranks:
        return spans
    known = pl.DataFrame(
        [(host, pid, rank) for (host, pid), rank in ranks.items()],
        schema={"host": spans.schema["host"], "pid": pl.Int32(), "of_process": pl.Int32()},
        orient="row",
    )
    joined = spans.join(known, on=["host", "pid"], how="left", maintain_order="left")
    return joined.with_columns(rank=pl.coalesce("rank", "of_process")).drop("of_process")


def learned(folder: Path, processes: list[Process]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the processes themselves left: settings of the job (of two words the first counts), and hooks that failed.

    See `ioprof.record.hooks.session`.
    """
    config: dict[str, Any] = {}
    unobserved = []
    for path in sorted(folder.glob("facts-*.jsonl")):
        for facts in filter(None, map(_object, path.read_bytes().splitlines())):
            if "unobserved" in facts:
                unobserved.append(facts)
            else:
                config = {**facts, **config}
    ranks = {process.rank for process in processes} - {None}
    return ({"ranks": len(ranks), **config} if ranks else config), unobserved


def _object(line: bytes) -> dict[str, Any]:
    """The object in a line; empty where its process was killed while it wrote."""
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
