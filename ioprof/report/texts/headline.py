"""The answer in one line: what the steps' time went to, the largest part first. Each number is one
of the table of causes, or a sum of them.
"""

import math
from collections.abc import Collection
from decimal import Decimal
from typing import Final

from ioprof.analysis.ranks.stragglers import late_ranks
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.format.run_record import PartCode, Summary
from ioprof.report.texts.cpu_statements import LEAST_SHARED
from ioprof.report.texts.statements import cause_rows, is_emulated, is_on_cpu
from ioprof.report.texts.units import sentence

_MOST_PARTS: Final = 2
"""Causes of waiting for batches that are named."""
_MOSTLY: Final = 50
"""Percent of the steps' time from which on one part is most of it."""
_LEAST: Final = Decimal("0.5")
"""Percent from which on a second part is named."""
_NAMES: Final = {
    "exchange": "gradient exchange",
    "straggler": "waiting for a slower rank",
    "h2d": "copies",
    "gc": "garbage collection",
    "host": "the loop's own Python",
}
"""Of causes by other words than their own."""


def headline(summary: Summary) -> str:
    """The answer in at most 20 words."""
    verdict = summary.verdict
    if verdict.bound_by is None and summary.steps.count and summary.run.imported_from:
        return "What the devices did is not in the files: what the job waited for is not known."
    if verdict.bound_by is None and summary.steps.count and summary.run.missing:
        return (
            "Most of the time went to exchanges with ranks that were not recorded: what the job"
            " waited for is not known."
        )
    if verdict.bound_by is None:
        return "No step was completed: what the job waited for is not known."
    text = _of_steps(summary)
    if verdict.first_epoch:
        text += f"; after the first epoch {_name(summary, verdict.bound_by)}"
    if verdict.device_waits:
        text += "; a faster device would wait"
    phases = {phase.name: phase.share for phase in summary.ledger.phases}
    if verdict.phase in phases:
        took = f"{verdict.phase.capitalize()} took {phases[verdict.phase] or 0.0:.1%} of the job"
        text = f"{took}; its steps: {text}"
    return f"{sentence(text)}."


def _of_steps(summary: Summary) -> str:
    shares = {
        row.cause: Decimal(row.share)
        for entry, row in zip(summary.steps.causes, cause_rows(summary.steps.causes), strict=True)
        if entry.share is not None
    }
    waits = {cause: share for cause, share in shares.items() if cause in LEAVES}
    groups = {cause: share for cause, share in shares.items() if cause not in LEAVES}
    groups["batches"] = sum(waits.values(), Decimal(0))
    # of equal parts the bound comes first, as in the bars
    bound = "batches" if summary.verdict.bound_by in LEAVES else summary.verdict.bound_by
    ordered = sorted(groups, key=lambda group: (-groups[group], group != bound))
    named = [ordered[0], *(group for group in ordered[1:2] if groups[group] >= _LEAST)]
    said = [
        f"{_name(summary, group)} ({groups[group]}%{_parts(summary, group, waits, most)})"
        for group, most in zip(named, (_MOST_PARTS, 1), strict=False)
    ]
    opening = "mostly" if groups[ordered[0]] >= _MOSTLY else "largest part:"
    text = f"{opening} {', then '.join(said)}"
    return text if "compute" in shares else f"{text}; what {_devices(summary)} computed is unknown"


def _parts(summary: Summary, group: str, waits: dict[str, Decimal], most: int) -> str:
    """The largest causes of waiting for batches, at most so many, the bound before others that are
    as large; what made the slowest rank late; who has the cores that computing waits for.
    """
    if group == "straggler":
        late = late_ranks(summary.steps.straggler_wait_s)
        return f": {late[0].by.replace('_', ' ')}" if late else ""
    if group == "compute":
        return _without_cores(summary)
    if group != "batches":
        return ""
    bound = summary.verdict.bound_by
    ordered = sorted(waits, key=lambda cause: (-waits[cause], cause != bound))
    named = [cause for cause in ordered if waits[cause] >= _LEAST][:most]
    if bound in waits and bound not in named:
        named = [*named[: most - 1], bound]
    whole = len(named) == 1 and waits[named[0]] == sum(waits.values())
    parts = [cause.replace("_", " ") + ("" if whole else f" {waits[cause]}%") for cause in named]
    return f": {', '.join(parts)}" if parts else ""


def waiting_for_cores(summary: Summary) -> float | None:
    """Of a model on the CPU: how much of the time in which its ranks could run they waited for a
    core, 0 to 1. None: little, or not known.
    """
    delay = summary.cpu.rank_run_delay_ratio if summary.cpu and is_on_cpu(summary) else None
    return delay if (delay or 0.0) >= LEAST_SHARED else None


def _without_cores(summary: Summary) -> str:
    """Who has the cores that computing waits for; empty: it waits little, or that is not known.
    Computing takes less where workers do less.
    """
    verdict = summary.verdict
    is_long = verdict.device_waits or verdict.first_epoch or verdict.phase
    if summary.cpu is None or waiting_for_cores(summary) is None or is_long:
        return ""
    if not (summary.cpu.worker_running_threads or 0.0) >= LEAST_SHARED:
        return ", short of cores"
    made = max(summary.steps.causes, key=lambda each: each.workers_share or 0.0)
    is_most = 100 * (made.workers_share or 0.0) >= _MOSTLY
    doing = f" for {made.cause.replace('_', ' ')}" if is_most else ""
    return f", short of cores: workers use them{doing}"


def _name(summary: Summary, group: str) -> str:
    if group == "batches":
        workers = summary.run.workers
        return "making batches" if workers == 0 else "waiting for batches"
    if group == "compute":
        return "emulated compute" if is_emulated(summary) else "compute"
    if group == "host" and _is_mostly(summary, PartCode.LOCK):
        return "Python and waiting for its interpreter lock"
    if group == "host" and _is_mostly(summary, PartCode.PROCESSES):
        return "waiting for other processes of the job"
    return _NAMES.get(group, group.replace("_", " "))


def _is_mostly(summary: Summary, code: PartCode) -> bool:
    """Whether the loop's own Python is mostly this waiting for others."""
    host = next((entry for entry in summary.steps.causes if entry.cause == "host"), None)
    if host is None:
        return False
    waited_s = sum(each.seconds for each in host.details if each.code is code)
    return waited_s >= _MOSTLY / 100 * (host.seconds or math.inf)


def _devices(summary: Summary) -> str:
    return "the CPU" if is_on_cpu(summary) else "the accelerators"


def share_of_stragglers(summary: Summary, causes: Collection[str]) -> float:
    """Share of the steps' time that ranks waited for others which these causes made late."""
    made_late = summary.steps.straggler_wait_s.values()
    seconds = sum(
        waited_s for each in made_late for cause, waited_s in each.items() if cause in causes
    )
    entry = next((entry for entry in summary.steps.causes if entry.cause == "straggler"), None)
    return (
        seconds / entry.seconds * (entry.share or 0.0)
        if entry and entry.seconds and "straggler" not in causes
        else 0.0
    )
