"""What the job learned: the accuracy of each evaluation by its time."""

from typing import Final

from ioprof.format.run_record import Summary
from ioprof.report.page.markup import Html, join, table
from ioprof.report.page.svg import Bar, bars
from ioprof.report.texts.units import count, duration, percent, rate

_WIDTH: Final = 0.006
"""Of a bar, over the chart: evaluations are points in time."""
_TICKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)


def learning_section(summary: Summary) -> Html:
    """A bar and a row for each evaluation."""
    found = summary.evaluations
    last_s = max((each.seconds or 0.0 for each in found), default=0.0) or 1.0
    drawn = [
        Bar(
            (1 - _WIDTH) * (each.seconds or 0.0) / last_s,
            _WIDTH,
            (("plain", each.accuracy),),
            f"{percent(each.accuracy)} after {duration(each.seconds)}, step {count(each.step)}",
        )
        for each in found
        if each.accuracy is not None
    ]
    chart = bars(
        drawn,
        "Accuracy of each evaluation by its time; the table has the same numbers.",
        [(place, duration(place * last_s)) for place in _TICKS],
        [(place, percent(place, 0)) for place in _TICKS],
        titles=("accuracy", "since the first step"),
    )
    rows = [
        (
            duration(each.seconds),
            count(each.step),
            rate(each.epoch),
            percent(each.accuracy),
            "" if each.loss is None else f"{each.loss:.4g}",
        )
        for each in found
    ]
    numbers = table(("time", "step", "epoch", "accuracy", "loss"), rows, frozenset(range(5)))
    return join(chart if drawn else None, numbers)
