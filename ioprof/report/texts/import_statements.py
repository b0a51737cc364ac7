"""What a report says of a run that was imported: what its files lacked, how its steps were found,
and what its devices did.
"""

from collections.abc import Iterator
from typing import Final

from ioprof.format.run_record import StepsBy, Summary
from ioprof.report.texts.units import clean, count, duration, percent

_FOUND_BY: Final = {
    StepsBy.OPTIMIZER: "a step is from one call of the optimizer to the next",
    StepsBy.LOADER: "a step is from one request for a batch to the next",
    StepsBy.PERIOD: (
        "a step is the period of {kernels} kernels and copies in which the device's work recurs,"
        " which may be a layer or a micro-batch of one"
    ),
}
_MOST_DAMAGES: Final = 2
_MOST_CHARS: Final = 150
_MORE: Final = (
    "what the job read, and what its workers did, is not in such files: type ioprof record --"
    " COMMAND where the job can be run again"
)


def steps_text(summary: Summary) -> str | None:
    """By what the steps were found; None: they were marked."""
    by = summary.steps.found_by
    if by is None:
        return None
    kernels = count(summary.steps.period_kernels or 0)
    return f"not marked in the files: {_FOUND_BY[by].format(kernels=kernels)}"


def import_notes(summary: Summary) -> Iterator[str]:
    """What a first screen must say, a line each: damage, and how steps were found."""
    damaged = summary.capture.import_damage
    for sentence in damaged[:_MOST_DAMAGES]:
        yield f"Incomplete: {clean(sentence, _MOST_CHARS)}"
    if len(damaged) > _MOST_DAMAGES:
        yield f"Incomplete: {len(damaged) - _MOST_DAMAGES} more (see --full)"
    if found := steps_text(summary):
        yield f"Steps are derived, {found}."


def device_text(summary: Summary) -> str | None:
    """What the devices did; None: not known."""
    found = summary.device_time
    if found is None or not found.total_s:
        return None
    parts = (
        f"computing {percent(found.compute_s / found.total_s)}",
        f"exchange alone {percent(found.exchange_s / found.total_s)}",
        f"copies alone {percent(found.copies_s / found.total_s)}",
        f"idle {percent(found.idle_s / found.total_s)}",
    )
    return (
        f"{', '.join(parts)} of {duration(found.total_s)} from the first to the last activity that"
        " was launched in the files"
    )


def more_text(summary: Summary) -> str | None:
    """What an import cannot show; None: it is none."""
    return _MORE if summary.run.imported_from is not None else None
