"""What a report says of a run that is the last part of a job (`ioprof record --keep`), or a
snapshot of one that goes on.
"""

from ioprof.format.run_record import Summary, WholeJob
from ioprof.report.texts.units import amount, count, percent

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


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
