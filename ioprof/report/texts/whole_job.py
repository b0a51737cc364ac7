"""What a report says of which part of a job a run is: the last minutes (`ioprof record --keep`), a
snapshot, some of its ranks, or several attempts.
"""

from typing import Final

from ioprof.format.run_record import AttemptRecord, Summary, WholeJob, WhyMissing
from ioprof.report.texts.units import amount, clean, count, duration, percent, ranges

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_MOST_ATTEMPTS: Final = 3  # of which it is said how they ended
_WHY_MISSING: Final = {
    WhyMissing.PART: "this is a part of the run; make one of all parts with: ioprof gather RUN",
    WhyMissing.LAUNCHER: (
        "ioprof records what runs on its own host; put it behind the launcher: srun ioprof record"
        " --out RUN -- COMMAND"
    ),
    WhyMissing.HIDDEN: (
        "the folder of the recording was not there for them, as in a container with a /tmp of its"
        " own; type: TMPDIR=FOLDER ioprof record ..., with a folder that has the same path in there"
    ),
    WhyMissing.UNKNOWN: (
        "their hosts were not recorded, or they ended before they trained; type on each host:"
        " ioprof record --out RUN -- COMMAND"
    ),
}


def missing_text(summary: Summary) -> str:
    """Of which ranks nothing was recorded, and what to do; empty: there are none."""
    found = summary.run.missing
    if found is None:
        return ""
    names = f"rank{'s' if len(found.ranks) > 1 else ''} {clean(ranges(found.ranks), 80)}"
    return f"nothing was recorded of {names} of {count(found.num_ranks)}: {_WHY_MISSING[found.why]}"


def attempts_text(summary: Summary) -> str:
    """How often the ranks were started again, how each attempt ended, and what that took."""
    attempts = summary.run.attempts
    lost_s = sum(phase.seconds for phase in summary.ledger.phases if phase.name == "restart")
    ended = [
        f"attempt {number} made {count(each.num_steps)} step{'' if each.num_steps == 1 else 's'}"
        f"{_how_it_ended(each)}"
        for number, each in enumerate(attempts[:-1], 1)
    ]
    shown = "; ".join(ended[:_MOST_ATTEMPTS])
    more = f"; and {len(ended) - _MOST_ATTEMPTS} more" if len(ended) > _MOST_ATTEMPTS else ""
    return (
        f"the ranks were started {count(len(attempts))} times: {shown}{more};"
        f" {duration(lost_s)} passed from the last step of an attempt to the first of the next"
    )


def _how_it_ended(attempt: AttemptRecord) -> str:
    failure = attempt.failure
    if failure is None:
        return ""
    who = "" if failure.rank is None else f"rank {failure.rank} "
    return f" until {who}{clean(failure.what, 120)}"


def window_text(summary: Summary) -> str:
    """Which part of the job the figures are of, `the last 10 min of 3 h 12 min`, and the sums of
    all; empty: they are of all.
    """
    found = summary.whole_job
    if found is None or not (found.is_part or not found.ended):
        return ""
    return (
        f"{part_text(found)}; of all of it: {whole_job_text(found)}"
        if found.is_part
        else part_text(found)
    )


def part_text(found: WholeJob) -> str:
    """Which part of the job: `the last 10 min of 3 h 12 min`."""
    if not found.is_part:
        return f"a snapshot of a job that goes on: all of its {length(found.job_s)} so far"
    goes_on = "" if found.ended else " so far, of a job that goes on"
    return f"the last {length(found.window_s)} of {length(found.job_s)}{goes_on}"


def whole_job_text(found: WholeJob) -> str:
    """Steps, waits and reads of all of a job."""
    steps, step_s = found.num_spans("step"), found.took_s("step")
    storage = found.num_bytes("read", "storage")
    parts = [f"{count(steps)} step{'' if steps == 1 else 's'}"]
    if step_s:
        parts[0] += f" in {length(step_s)} summed over ranks"
        parts.append(f"waits for batches were {percent(found.took_s('wait') / step_s)} of that")
    if found.num_spans("read"):
        parts.append(
            f"{amount(found.num_bytes('read'))} read, {amount(storage)} of them from storage"
        )
    return ", ".join(parts)


def length(seconds: float) -> str:
    """A length of time in its two largest units: `3 h 12 min`, `30 s`; below a minute to a tenth of
    a second.
    """
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    first = next(place for place, (unit_s, _) in enumerate(_UNITS) if whole >= unit_s)
    found = []
    for unit_s, name in _UNITS[first : first + 2]:
        number, whole = divmod(whole, unit_s)
        found += [f"{number} {name}"] if number else []
    return " ".join(found)
