"""What accelerators lost, in GPU-hours and in money, in words."""

import math
from collections.abc import Iterator
from typing import Final

from ioprof.analysis.gpu_time import GpuTime, gpu_time
from ioprof.errors import CommandError
from ioprof.format.run_record import Summary
from ioprof.report.texts.statements import Statement, is_on_cpu

LEAST_SHOWN_S: Final = 360.0
"""GPU time of a job, a tenth of an hour, from which a report names it unasked: of less, most parts
would read as 0.00 GPU-hours."""
_LEAST_SHARE: Final = 0.01  # of the job's GPU time, for a cause that is named
_MOST_CAUSES: Final = 4
_HOUR_S: Final = 3600.0


def check_price(price: float) -> float:
    """The price of a GPU-hour, in any currency. CommandError: it is none."""
    if not 0 <= price < math.inf:
        raise CommandError(
            f"--price-per-gpu-hour {price}: is no price; give a number such as"
            " --price-per-gpu-hour 2.50"
        )
    return price


def gpu_time_statements(summary: Summary, price: float | None = None) -> Iterator[Statement]:
    """GPU-hours lost, by cause; with the `price` of one, also the money, or why it is not known."""
    found = gpu_time(summary)
    if found is not None and (price is not None or found.job_s >= LEAST_SHOWN_S):
        yield Statement("GPU time", _lost(found, 1 / _HOUR_S, " GPU-hours"), found.basis)
    if price is None:
        return
    if found is None:
        why = (
            "the model computed on the CPU"
            if is_on_cpu(summary)
            else "what GPUs computed in the steps was not recorded"
        )
        yield Statement("cost", f"not known: {why}")
        return
    per_hour = price * len(summary.steps.per_rank)
    each = f"{_number(found.lost_ratio * per_hour)} of {_number(per_hour)}"
    text = f"{_lost(found, price / _HOUR_S, '')}, at {_number(price)} per GPU-hour"
    yield Statement("cost", f"{text}; one more hour of such steps loses {each}", found.basis)


def _lost(found: GpuTime, scale: float, unit: str) -> str:
    """`1.2 of 3.4 GPU-hours lost: decode 0.9, ...`, in seconds times `scale`."""
    parts = {**found.by_cause, "outside of steps": found.outside_s}
    named = [
        f"{name} {_number(seconds * scale)}"
        for name, seconds in sorted(parts.items(), key=lambda each: -each[1])[:_MOST_CAUSES]
        if seconds >= _LEAST_SHARE * found.job_s
    ]
    text = f"{_number(found.lost_s * scale)} of {_number(found.job_s * scale)}{unit} lost"
    return f"{text}: {', '.join(named)}" if named else text


def _number(value: float) -> str:
    """To the cent, and below 1 to three significant digits, so that no loss reads as none."""
    digits = 2 if value >= 1 or not value else max(2, 2 - math.floor(math.log10(value)))
    return f"{value:,.{digits}f}"
