"""Everything that a report says about a run."""

from dataclasses import replace
from typing import Any, Final

import polars as pl

from ioprof.analysis.blame import Charges, charges
from ioprof.analysis.capture import capture
from ioprof.analysis.demand import demand, fetched
from ioprof.analysis.devices import deliveries, stalls
from ioprof.analysis.facts import Facts, mapping, whole
from ioprof.analysis.lineage import making
from ioprof.analysis.observed import NO_STEP_RECORDED, pageable_ratio
from ioprof.analysis.overlap import overlap
from ioprof.analysis.reads import storage
from ioprof.analysis.result import CauseShare, Clocks, Steps, Summary, Throughput
from ioprof.analysis.steps import warmup
from ioprof.analysis.unmeasured import unknown_read_ratio, unmeasured
from ioprof.analysis.verdict import Evidence, verdict
from ioprof.schema import CAUSES
from ioprof.trace import Trace

_OF_DEVICE: Final = ("compute", "communication", "h2d")
"""Causes that an emulated device makes up."""


def summarise(trace: Trace, charged: Charges | None = None) -> Summary:
    """The summary of a run, be it damaged or partial; the same for the same trace. `charged` is `charges(trace)`, if at hand."""
    facts = Facts.of(trace.run)
    charged = charges(trace) if charged is None else charged
    table = charged.steps
    steps, seen, hidden, made = _steps(trace, facts, charged), storage(trace), overlap(trace), fetched(trace)
    need = demand(trace, made)
    evidence = Evidence(facts, steps, seen, need, hidden, made, _span_s(table) or 0.0, _warmup_ratio(table), making(trace))
    return Summary(
        run=_run(trace.run, facts),
        throughput=_throughput(facts, table),
        steps=steps,
        overlap=hidden,
        storage=replace(seen, devices=deliveries(trace), stalls=stalls(trace)),
        demand=need,
        capture=capture(trace),
        clocks=_clocks(trace.run),
        verdict=verdict(evidence),
    )


def _others_cpu_ratio(run: dict[str, Any]) -> float | None:
    """The greatest share of a host's CPU time that programs other than the job took while it ran; null if that was not recorded."""
    hosts = run.get("hosts")
    found = [host.get("others_cpu_ratio") for host in hosts if isinstance(host, dict)] if isinstance(hosts, list) else []
    return max((ratio for ratio in found if isinstance(ratio, float)), default=None)


def _run(run: dict[str, Any], facts: Facts) -> dict[str, Any]:
    parts = (mapping(run.get("dataset")).get("name"), facts.layout, facts.loader, facts.device)
    return {
        "name": run.get("name") or " ".join(str(part) for part in parts if part) or "run",
        "command": run.get("command"),
        "status": run.get("status"),
        "device": facts.device,
        "device_basis": facts.device_basis,
        "loader": facts.loader,
        "dataset": run.get("dataset"),
        "ranks": facts.ranks,
        "workers": facts.workers,
        "batch_size": facts.batch_size,
        "started": run.get("started"),
        "failures": run.get("failures") or [],
        "others_cpu_ratio": _others_cpu_ratio(run),
    }


def _clocks(run: dict[str, Any]) -> Clocks:
    clocks = mapping(run.get("clocks"))
    return Clocks(str(clocks.get("method") or "unknown"), whole(clocks.get("uncertainty_ns")))


def _throughput(facts: Facts, table: pl.DataFrame) -> Throughput:
    own = facts.device_samples_per_s
    return Throughput(
        samples_per_s=_rate(facts, table),
        steady_samples_per_s=_rate(facts, _without_drain(_steady(table))) if warmup(_num_steps(table)) else None,
        device_samples_per_s=own * (facts.ranks or 1) if own else None,
        basis=facts.device_basis if len(table) else "unknown",
    )


def _rate(facts: Facts, table: pl.DataFrame) -> float | None:
    """Samples of all ranks per second, over these steps; a step is one batch on every rank of the job."""
    wall_s = _span_s(table)
    if not wall_s or not facts.batch_size:
        return None
    return _num_steps(table) * facts.batch_size * (facts.ranks or table["rank"].n_unique()) / wall_s


def _span_s(table: pl.DataFrame) -> float | None:
    return (int(table["end_ns"].to_numpy().max()) - int(table["start_ns"].to_numpy().min())) / 1e9 if len(table) else None


def _num_steps(table: pl.DataFrame) -> int:
    """Steps of the rank that made most."""
    return max(table.group_by("rank").len()["len"].to_list(), default=0)


def _steady(table: pl.DataFrame) -> pl.DataFrame:
    """The steps after warm-up."""
    return table.filter(pl.col("step").rank("ordinal").over("rank") > warmup(_num_steps(table)))


def _without_drain(table: pl.DataFrame) -> pl.DataFrame:
    """All but each rank's last step, which ends with waiting for all work that is still queued on the device."""
    return table.filter(pl.col("step") < pl.col("step").max().over("rank"))


def _warmup_ratio(table: pl.DataFrame) -> dict[str, float]:
    table = _charged(table)
    steady = _steady(table)
    sums = {cause: int(table[f"{cause}_ns"].sum()) for cause in CAUSES}
    return {cause: 1 - int(steady[f"{cause}_ns"].sum()) / total for cause, total in sums.items() if total}


def _steps(trace: Trace, facts: Facts, charged: Charges) -> Steps:
    table = charged.steps
    walls = (table["end_ns"] - table["start_ns"]).sort()
    return Steps(
        count=_num_steps(table),
        warmup=warmup(_num_steps(table)),
        mean_s=int(walls.sum()) / len(walls) / 1e9 if len(walls) else None,
        p50_s=_quantile_s(walls, 0.50),
        p95_s=_quantile_s(walls, 0.95),
        causes=_causes(trace, facts, charged),
        per_rank=tuple(_of_rank(part) for part in _charged(table).partition_by("rank", maintain_order=True)),
        behind_peers={str(rank): {cause: ns / 1e9 for cause, ns in found.items()} for rank, found in charged.behind_peers.items()},
    )


def _charged(table: pl.DataFrame) -> pl.DataFrame:
    """The steps that are charged to causes: those in which the GPU was recorded, if it was recorded in windows."""
    return table.filter(pl.col("host_ns").is_not_null())


def _quantile_s(sorted_ns: pl.Series, ratio: float) -> float | None:
    return int(sorted_ns[round(ratio * (len(sorted_ns) - 1))]) / 1e9 if len(sorted_ns) else None


def _of_rank(part: pl.DataFrame) -> dict[str, Any]:
    head = {"rank": int(part["rank"][0]), "steps": len(part), "wall_s": int((part["end_ns"] - part["start_ns"]).sum()) / 1e9}
    return head | {f"{cause}_s": _seconds(part, cause) for cause in CAUSES}


def _seconds(table: pl.DataFrame, cause: str) -> float | None:
    column = table[f"{cause}_ns"]
    return None if column.null_count() == len(column) else int(column.sum()) / 1e9


def _causes(trace: Trace, facts: Facts, charged: Charges) -> tuple[CauseShare, ...]:
    table = _charged(charged.steps)
    reasons, total_ns = unmeasured(trace), int((table["end_ns"] - table["start_ns"]).sum())
    if not len(table) and len(charged.steps):
        reasons = dict.fromkeys(CAUSES, NO_STEP_RECORDED)
    found = (_cause(cause, table, total_ns, facts, reasons) for cause in CAUSES)
    includes = {"communication": _peers_share(charged), "storage": _unknown_share(trace), "loader": _unmeasured_share(reasons)}
    includes["h2d"] = _pageable_share(trace)
    return tuple(entry if entry.reason else replace(entry, reason=includes.get(entry.cause)) for entry in found)


def _cause(cause: str, table: pl.DataFrame, total_ns: int, facts: Facts, reasons: dict[str, str]) -> CauseShare:
    if cause in reasons or not len(table):
        return CauseShare(cause, None, None, "unknown", reasons.get(cause, "no step was completed"))
    charged_ns = int(table[f"{cause}_ns"].sum())
    share = charged_ns / total_ns if total_ns else 0.0
    return CauseShare(cause, charged_ns / 1e9, share, _basis(cause, facts), None)


def _peers_share(charged: Charges) -> str | None:
    waited: dict[str, int] = {}
    for causes in charged.behind_peers.values():
        for cause, waited_ns in causes.items():
            waited[cause] = waited.get(cause, 0) + waited_ns
    if not waited:
        return None
    most = max(waited, key=lambda cause: waited[cause])
    total_s, most_s = sum(waited.values()) / 1e9, waited[most] / 1e9
    return f"includes {total_s:.3f} s of waiting for slower ranks, {most_s:.3f} s of it for their {most}"


def _unknown_share(trace: Trace) -> str | None:
    ratio = unknown_read_ratio(trace)
    return f"includes reads of unknown origin: {ratio:.1%} of the read time" if ratio else None


def _unmeasured_share(reasons: dict[str, str]) -> str | None:
    inside = [cause for cause, reason in reasons.items() if "in loader" in reason]
    return f"includes {', '.join(inside)}, which could not be measured" if inside else None


def _pageable_share(trace: Trace) -> str | None:
    ratio = pageable_ratio(trace) or 0.0
    return (
        f"{ratio:.0%} of the bytes came from pageable memory, and such copies cannot overlap with compute"
        if ratio >= 0.01
        else None
    )


def _basis(cause: str, facts: Facts) -> str:
    if cause in _OF_DEVICE:
        return facts.device_basis
    return "derived" if cause == "host" else "measured"
