"""The accelerators' time that a job paid for: what computed, and what was lost to which cause."""

from dataclasses import dataclass
from typing import Final

from ioprof.format.run_record import Summary

_USEFUL: Final = ("compute", "validation")
"""Causes in which the accelerator does what it is there for."""


@dataclass(frozen=True)
class GpuTime:
    """Seconds of accelerators, one of them per rank; all sums are over ranks."""

    job_s: float
    """From the start of the job to its end; of a part of a job, its steps."""
    compute_s: float
    """Computing training and validation steps."""
    by_cause: dict[str, float]
    """Lost in steps, by cause, the largest first. High: look at that cause first."""
    outside_s: float
    """Lost outside of steps: imports, the first batch, gaps between epochs, the job's end."""
    basis: str
    """One of `ioprof.format.schema.BASES`."""

    @property
    def lost_s(self) -> float:
        """All that did not compute."""
        return self.job_s - self.compute_s

    @property
    def lost_ratio(self) -> float:
        """Of the time in steps, 0 to 1: what further steps lose."""
        lost_s = sum(self.by_cause.values())
        return lost_s / (lost_s + self.compute_s) if lost_s else 0.0


def gpu_time(summary: Summary) -> GpuTime | None:
    """None where no accelerator computed, or what it computed was not recorded.

    Where only some steps are charged, the others count as those: time is charged by shares.
    """
    shares = {each.cause: each.share for each in summary.steps.causes if each.share is not None}
    steps_s = sum(rank.wall_s for rank in summary.steps.per_rank)
    if summary.run.device in (None, "cpu") or "compute" not in shares or not steps_s:
        return None
    is_part = summary.whole_job is not None and summary.whole_job.is_part
    wall_s = (summary.ledger.wall_s or 0.0) * len(summary.steps.per_rank)
    job_s = steps_s if is_part else max(steps_s, wall_s)
    lost = {cause: share * steps_s for cause, share in shares.items() if cause not in _USEFUL}
    return GpuTime(
        job_s=job_s,
        compute_s=steps_s * sum(shares.get(cause, 0.0) for cause in _USEFUL),
        by_cause=dict(sorted(lost.items(), key=lambda each: -each[1])),
        outside_s=job_s - steps_s,
        basis=summary.run.device_basis or "measured",
    )
