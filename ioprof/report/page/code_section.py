"""Which code is behind each cause: functions, their lines, and what these called, as bars within
bars.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ioprof.format.run_record import CauseShare, CodeShare, Summary
from ioprof.report.page.markup import Html, element, join
from ioprof.report.palette import CODE_COLOURS
from ioprof.report.texts.units import clean, duration, percent

_LEAST_SHARE: Final = 0.01
"""Of the steps' time: causes with less have no bars."""
_LEAST_WIDTH: Final = 0.004
"""Of a cause's time: less is narrower than a letter."""
_LINE_HEIGHT: Final = 20


def code_of_causes(summary: Summary) -> Html | None:
    """For each cause of which stacks were sampled: its functions, their lines below them, and the
    library functions that these called below those. Widths are parts of the cause's time.
    """
    lines: dict[str, list[CodeShare]] = {}
    for entry in summary.unexplained:
        lines.setdefault(entry.cause, []).append(entry)
    causes = sorted(
        (
            entry
            for entry in summary.steps.causes
            if entry.cause in lines and (entry.share or 0) >= _LEAST_SHARE and entry.seconds
        ),
        key=lambda entry: -(entry.seconds or 0),
    )
    if not causes:
        return None
    colours: dict[tuple[str, str], int] = {}
    rows = (_row(entry, lines[entry.cause], colours) for entry in causes)
    return element(
        "div",
        element("h2", "Code behind the causes"),
        element("dl", *rows, class_="code-causes"),
        element(
            "p",
            "By samples of Python's stacks (derived). Your functions, below them their lines, below"
            " these what they called in libraries; blank: no sample, or little time.",
            class_="note",
        ),
        class_="code-of-causes",
    )


def _row(
    cause: CauseShare, lines: Sequence[CodeShare], colours: dict[tuple[str, str], int]
) -> Html:
    whole_s = max(cause.seconds or 0.0, sum(line.seconds for line in lines))
    bars = list(_bars(lines, whole_s, colours))
    levels = 1 + max((level for level, _ in bars), default=0)
    label = f"{cause.cause.replace('_', ' ')} {duration(cause.seconds)}"
    return join(
        element(
            "dt",
            element("i", class_=f"swatch cause-{cause.cause}", aria_hidden="true"),
            label,
            element("small", f" {percent(cause.share)}"),
        ),
        element(
            "dd",
            *(bar for _, bar in bars),
            class_="flame",
            style=f"height:{levels * _LINE_HEIGHT}px",
        ),
    )


def _bars(
    lines: Sequence[CodeShare], whole_s: float, colours: dict[tuple[str, str], int]
) -> Iterator[tuple[int, Html]]:
    """The level of each bar, and the bar."""
    functions: dict[tuple[str, str], list[CodeShare]] = {}
    for line in lines:
        functions.setdefault((line.file, line.function), []).append(line)
    begin_s = 0.0
    for key, own in sorted(
        functions.items(), key=lambda entry: -sum(line.seconds for line in entry[1])
    ):
        seconds = sum(line.seconds for line in own)
        colour = 0
        if own[0].is_own:
            colour = colours.setdefault(key, 1 + len(colours) % (len(CODE_COLOURS) - 1))
        if seconds >= _LEAST_WIDTH * whole_s:
            yield 0, _bar(0, begin_s, seconds, whole_s, colour, key[1], own[0].file)
        for line in sorted(own, key=lambda entry: -entry.seconds) if own[0].is_own else ():
            if line.seconds >= _LEAST_WIDTH * whole_s:
                yield (
                    1,
                    _bar(
                        1,
                        begin_s,
                        line.seconds,
                        whole_s,
                        colour,
                        f"{line.file.rpartition('/')[2]}:{line.line}",
                        line.file,
                    ),
                )
                if line.library:
                    yield 2, _bar(2, begin_s, line.seconds, whole_s, 0, line.library, "")
            begin_s += line.seconds
        if not own[0].is_own:
            begin_s += seconds


def _bar(
    level: int, begin_s: float, seconds: float, whole_s: float, colour: int, name: str, file: str
) -> Html:
    text = clean(name, 120)
    about = f"{text}: {duration(seconds)}, {percent(seconds / whole_s)} of the cause"
    return element(
        "span",
        text,
        title=f"{about}; {clean(file, 200)}" if file else about,
        class_=f"code-{colour}",
        style=(
            f"left:{begin_s / whole_s * 100:.3f}%;width:{seconds / whole_s * 100:.3f}%;"
            f"top:{level * _LINE_HEIGHT}px"
        ),
    )
