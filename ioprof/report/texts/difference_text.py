"""How one run differs from another, in words."""

from collections.abc import Sequence
from typing import Final

from ioprof.analysis.changed_setting import Change
from ioprof.format.run_record import CauseDifference, RunDifference
from ioprof.report.texts.units import clean, duration, percent

_MOST_CHANGES: Final = 8  # in a sentence; --json has all
_LONGEST: Final = 80


def difference_text(entry: RunDifference) -> str:
    """What differs, in words."""
    step = entry.step
    if step is None or entry.ratio is None:
        return f"cannot be compared with the first: {clean(entry.reason or '', 200)}"
    took = f"{duration(step.other_s)} per {entry.per} against {duration(step.first_s)}"
    differing = sorted(
        (each for each in entry.causes if each.differs),
        key=lambda each: -abs(each.other_s - each.first_s),
    )
    causes = "; ".join(_text(each) for each in differing)
    if not step.differs:
        same = f"no difference: {took} ({_interval(step)})"
        return f"{same}, but the time went elsewhere: {causes}" if causes else same
    way = "slower" if entry.ratio > 1 else "faster"
    return (
        f"{percent(abs(entry.ratio - 1))} {way}: {took} ({_interval(step)})."
        f" {causes or 'No single cause differs'}"
    )


def changes_text(changes: Sequence[Change]) -> str:
    """What was recorded of the setting and is not the same, in one sentence."""
    if not changes:
        return (
            "what changed: nothing that was recorded of command, settings, versions, host or data"
        )
    shown = [
        f"{clean(each.what)} {clean(each.first, _LONGEST) or 'none'} → "
        f"{clean(each.other, _LONGEST) or 'none'}"
        for each in changes[:_MOST_CHANGES]
    ]
    more = len(changes) - _MOST_CHANGES
    return f"what changed: {'; '.join(shown)}{f'; and {more} more' if more > 0 else ''}"


def _text(entry: CauseDifference) -> str:
    return f"{entry.cause.replace('_', ' ')} {_interval(entry)}"


def _interval(entry: CauseDifference) -> str:
    middle, half = entry.other_s - entry.first_s, (entry.high_s - entry.low_s) / 2
    return f"{'+' if middle >= 0 else '−'}{duration(abs(middle))} ± {duration(half)}"
