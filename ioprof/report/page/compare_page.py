"""Several runs on one page: how fast each was, what its time went to, and what differs from the
first, on common axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.changed_setting import Change, changed_setting
from ioprof.files import write_atomically
from ioprof.format.run_record import CauseDifference, RunDifference, Summary
from ioprof.format.schema import CAUSES, SUMMARY_SCHEMA
from ioprof.report.page import sections
from ioprof.report.page.markup import Html, element, join, table
from ioprof.report.page.sections import CAUSE_MEANINGS, badge, section, swatch
from ioprof.report.page.shell import footer, page_styles, whole_page
from ioprof.report.page.svg import Bar, bars, even_ticks
from ioprof.report.run import Run
from ioprof.report.texts.difference_text import changes_text, difference_text
from ioprof.report.texts.headline import headline
from ioprof.report.texts.statements import cause_rows, failures, is_emulated
from ioprof.report.texts.units import (
    MISSING,
    amount,
    clean,
    count,
    duration,
    percent,
    rate,
    sentence,
)
from ioprof.report.views import wall_ns

_BINS: Final = 60
_LEAST_SHARE: Final = 0.0005
"""Of the longest step; a cause with less has no part in a bar."""


@dataclass(frozen=True)
class ComparedRuns:
    """Runs, the first of which is the baseline."""

    runs: tuple[Run, ...]
    differences: tuple[RunDifference, ...]
    """Of each run but the first, against the first."""


def write_comparison(compared: ComparedRuns, path: Path) -> None:
    """Write the page to `path`, whole or not at all."""
    write_atomically(path, comparison_page(compared))


def comparison_page(compared: ComparedRuns) -> str:
    """The text of the page; it needs no script."""
    names = names_of([run.summary for run in compared.runs])
    main = element(
        "main",
        _answer(compared, names),
        section("causes", "Time of a step by cause", step_bars(compared, names)),
        section(
            "changes",
            "What changed",
            *(
                _changes(entry, name, changed_setting(compared.runs[0], run))
                for entry, name, run in zip(
                    compared.differences, names[1:], compared.runs[1:], strict=True
                )
            ),
        ),
        section("steps", "How long steps take", _distributions(compared, names)),
        section("storage", "Storage", _storage(compared, names)),
        section("settings", "What was run", _settings(compared, names)),
        section("reading", "How to read this", sections.glossary()),
    )
    head = element(
        "header",
        element(
            "div",
            element("span", "ioprof", class_="brand"),
            element("h1", "Comparison of runs"),
            class_="title",
        ),
        element("p", f"Against the first: {names[0]}", class_="quiet"),
    )
    return whole_page(
        f"{' against '.join(reversed(names))}",
        (head, main, footer(SUMMARY_SCHEMA)),
        [],
        page_styles("compare.css"),
    )


def names_of(summaries: Sequence[Summary]) -> list[str]:
    """A name for each run, all different."""
    names: list[str] = []
    for place, summary in enumerate(summaries):
        name = clean(summary.run.name, 40)
        names.append(name if name not in names else f"{name} ({place + 1})")
    return names


def _answer(compared: ComparedRuns, names: list[str]) -> Html:
    """Of each run its rate against the first, and in a sentence what differs."""
    first = compared.runs[0].summary.throughput.steady_samples_per_s
    rows = []
    for place, (run, name) in enumerate(zip(compared.runs, names, strict=True)):
        own = run.summary.throughput.steady_samples_per_s
        against = f"{own / first:.2f} ×" if own and first else MISSING
        basis = badge("emulated") if is_emulated(run.summary) else None
        broken = "; ".join(failures(run.summary)[:1])
        said = (
            headline(run.summary) if not place else difference_text(compared.differences[place - 1])
        )
        rows.append(
            (
                name,
                join(rate(own), basis),
                against,
                duration(run.summary.steps.p50_s),
                clean(f"{broken}. {said}" if broken else said, 400),
            )
        )
    headings = ("run", "samples/s, steady", "against the first", "step, median", "what differs")
    note = (
        "Intervals of 95 % from the steps of these runs; two runs with the same settings may differ"
        " by more."
    )
    return element(
        "section",
        element("p", _sentence(compared, names), class_="headline"),
        element("div", table(headings, rows, frozenset({1, 2, 3})), class_="workers last-below"),
        element("p", note, class_="note"),
        id="verdict",
        aria_label="Answer",
    )


def _sentence(compared: ComparedRuns, names: list[str]) -> str:
    """The answer in one line: of the run that differs most."""
    known = [
        (entry, name)
        for entry, name in zip(compared.differences, names[1:], strict=True)
        if entry.step is not None and entry.ratio is not None and entry.step.differs
    ]
    if not known:
        can_be = any(entry.step for entry in compared.differences)
        return (
            "No difference is certain: the steps vary by as much."
            if can_be
            else "The runs cannot be compared."
        )
    entry, name = max(known, key=lambda each: abs(np.log(each[0].ratio or 1.0)))
    ratio = entry.ratio or 1.0
    grown = max(
        entry.causes, key=lambda each: (each.other_s - each.first_s) * (1 if ratio > 1 else -1)
    )
    way = f"{percent(abs(ratio - 1))} {'longer' if ratio > 1 else 'shorter'}"
    return f"{name}: a {entry.per} is {way}, most of it in {grown.cause.replace('_', ' ')}."


def step_bars(compared: ComparedRuns, names: list[str]) -> Html:
    """A bar for each run on one axis of time: the mean step, divided by cause; per sample where
    batches differ.
    """
    per, means = _means_of_all(compared)
    most = max((sum(found.values()) for found in means), default=0.0) or 1.0
    rows = []
    for name, found, run in zip(names, means, compared.runs, strict=True):
        total = sum(found.values())
        parts = (
            element(
                "i",
                class_=f"cause-{cause}",
                style=f"width:{value / most * 100:.3f}%",
                title=f"{cause}: {duration(value)}",
            )
            for cause, value in found.items()
            if value >= _LEAST_SHARE * most
        )
        said = ", ".join(
            f"{cause} {duration(value)}" for cause, value in found.items() if value >= 0.05 * most
        )
        bar = element("div", *parts, class_="stack large", role="img", aria_label=f"{name}: {said}")
        rows.append(
            (name, duration(total if found else None), run.summary.verdict.bound_by or MISSING, bar)
        )
    used = [
        cause
        for cause in CAUSES
        if any(found.get(cause, 0.0) >= _LEAST_SHARE * most for found in means)
    ]
    keys = (
        element("li", swatch(cause), cause.replace("_", " "), title=CAUSE_MEANINGS[cause])
        for cause in used
    )
    fold = element("details", element("summary", "Shares as a table"), _shares(compared, names))
    return join(
        element("ul", *keys, class_="keys"),
        element(
            "div",
            table(("run", f"mean {per}", "main wait", f"time of a {per}"), rows, frozenset({1})),
            class_="workers last-below three",
        ),
        fold,
    )


def _means_of_all(compared: ComparedRuns) -> tuple[str, list[dict[str, float]]]:
    """Seconds of each cause per step or sample, of each run: those of the differences, where all
    runs could be compared.
    """
    found = compared.differences
    if all(entry.step for entry in found) and len({entry.per for entry in found}) == 1:
        first = {each.cause: each.first_s for each in found[0].causes}
        return found[0].per, [
            first,
            *({each.cause: each.other_s for each in entry.causes} for entry in found),
        ]
    return "step", [_means(run) for run in compared.runs]


def _means(run: Run) -> dict[str, float]:
    """Mean seconds of each cause per step after the warm-up, over all ranks."""
    steps = (
        run.steps.filter(pl.col("step") >= run.summary.steps.warmup)
        if len(run.steps)
        else run.steps
    )
    means = {cause: steps[f"{cause}_ns"].mean() for cause in CAUSES} if len(steps) else {}
    return {cause: float(mean) / 1e9 for cause, mean in means.items() if isinstance(mean, float)}


def _shares(compared: ComparedRuns, names: list[str]) -> Html:
    columns = [
        {row.cause: row.share for row in cause_rows(run.summary.steps.causes)}
        for run in compared.runs
    ]
    rows = [(cause, *(column[cause] for column in columns)) for cause in CAUSES]
    return table(("cause, % of the steps", *names), rows, frozenset(range(1, len(names) + 1)))


def _changes(entry: RunDifference, name: str, changed: tuple[Change, ...]) -> Html:
    """By cause how much longer or shorter a step is, as a mark with its interval on an axis that
    all causes share.
    """
    if entry.step is None:
        return join(
            element("h3", name),
            element("p", f"{clean(entry.reason or 'not known', 300)}.", class_="nothing"),
        )
    shown = [entry.step, *sorted(entry.causes, key=lambda each: -abs(each.other_s - each.first_s))]
    shown = [each for each in shown if each.cause == "step" or each.first_s or each.other_s]
    edge = max(max(abs(each.low_s), abs(each.high_s)) for each in shown) or 1e-9
    rows = [
        (
            (
                join(swatch(each.cause), each.cause)
                if each.cause != "step"
                else element("strong", f"the {entry.per}")
            ),
            duration(each.first_s),
            duration(each.other_s),
            _signed(each.other_s - each.first_s),
            _mark(each, edge),
            "differs" if each.differs else "",
        )
        for each in shown
    ]
    headings = (
        "cause",
        "first run",
        "this run",
        "difference",
        f"interval, −{duration(edge)} to +{duration(edge)}",
        "",
    )
    return join(
        element("h3", name),
        element("p", f"{difference_text(entry)}.", class_="note"),
        element("p", f"{sentence(changes_text(changed))}.", class_="note"),
        element(
            "div", table(headings, rows, frozenset({1, 2, 3})), class_="changes-by-cause last-below"
        ),
    )


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '−'}{duration(abs(seconds))}"


def _mark(entry: CauseDifference, edge: float) -> Html:
    """The mean as a point and the interval as a line, on an axis with 0 in the middle."""
    low, high, middle = (
        50 + 50 * value / edge
        for value in (entry.low_s, entry.high_s, entry.other_s - entry.first_s)
    )
    way = ("slower" if entry.other_s > entry.first_s else "faster") if entry.differs else "same"
    return element(
        "div",
        element("i", class_="range", style=f"left:{low:.2f}%;width:{max(high - low, 0.4):.2f}%"),
        element("i", class_="point", style=f"left:{middle:.2f}%"),
        class_=f"interval {way}",
        role="img",
        aria_label=f"from {_signed(entry.low_s)} to {_signed(entry.high_s)}",
    )


def _distributions(compared: ComparedRuns, names: list[str]) -> Html:
    """A histogram for each run over the same logarithmic bins, and as high."""
    walls = [
        run.steps.select(wall_ns().clip(lower_bound=1)).to_series().to_numpy() / 1e9
        for run in compared.runs
    ]
    known = [values for values in walls if len(values)]
    if not known:
        return sections.nothing("no step was recorded")
    edges = np.geomspace(
        min(values.min() for values in known) * 0.999,
        max(values.max() for values in known) * 1.001,
        _BINS + 1,
    )
    shares = [np.histogram(values, edges)[0] / max(len(values), 1) for values in walls]
    most = max(float(found.max()) for found in shares) or 1.0
    ticks_x = [(place / 4, duration(float(edges[round(place / 4 * _BINS)]))) for place in range(5)]
    ticks_y = [(value / 100 / most, percent(value / 100, 0)) for value in even_ticks(most * 100, 3)]
    parts: list[Html] = []
    for name, found, values in zip(names, shares, walls, strict=True):
        drawn = [
            Bar(
                place / _BINS,
                1 / _BINS,
                (("plain", float(share) / most),),
                f"{duration(float(edges[place]))} to {duration(float(edges[place + 1]))}: {percent(float(share))} of the steps",  # noqa: E501
            )
            for place, share in enumerate(found)
            if share
        ]
        label = f"Histogram of the times of the steps of {name}; the level axis is logarithmic."
        parts += [
            element("h3", f"{name}: {count(len(values))} steps"),
            bars(drawn, label, ticks_x, ticks_y, 90, ("share of the steps", "")),
        ]
    return join(
        *parts,
        element("p", "All runs have the same axes; the level one is logarithmic.", class_="note"),
    )


def _storage(compared: ComparedRuns, names: list[str]) -> Html:
    found = [run.summary.storage for run in compared.runs]
    demands = [run.summary.demand for run in compared.runs]
    rows = [
        ("bytes of batches", *(amount(each.bytes) for each in found)),
        ("from storage", *(amount(each.bytes_from_storage) for each in found)),
        ("from page cache", *(amount(each.bytes_from_cache) for each in found)),
        ("source unknown", *(amount(each.bytes_unknown) for each in found)),
        ("reads", *(count(each.accesses) for each in found)),
        (
            "bytes of one read",
            *(amount(each.bytes / each.accesses if each.accesses else None) for each in found),
        ),
        *(
            (
                f"time of one read, {name}",
                *(duration(getattr(each, f"read_{name}_s")) for each in found),
            )
            for name in ("p50", "p95", "p99")
        ),
        (
            "the devices need",
            *(
                f"{amount(each.bytes_per_s)}/s" if each.bytes_per_s is not None else MISSING
                for each in demands
            ),
        ),
    ]
    return table(("storage", *names), rows, frozenset(range(1, len(names) + 1)))


def _settings(compared: ComparedRuns, names: list[str]) -> Html:
    """What was set, those settings that differ first and marked."""
    settings = [_settings_of(run.summary) for run in compared.runs]
    differing = [key for key in settings[0] if len({each[key] for each in settings}) > 1]
    same = [key for key in settings[0] if key not in differing]
    rows = [(element("strong", key), *(each[key] for each in settings)) for key in differing]
    rows += [
        (Html(element("span", key, class_="quiet")), *(each[key] for each in settings))
        for key in same
    ]
    note = (
        f"Different: {', '.join(differing)}."
        if differing
        else "All settings that were recorded are the same."
    )
    return join(element("p", note), table(("setting", *names), rows))


def _settings_of(summary: Summary) -> dict[str, str]:
    run, data = summary.run, summary.run.dataset
    image = data.image if data else None
    values: dict[str, object] = {
        "dataset": data.name if data else None,
        "layout": data.layout if data else None,
        "image": image.transform if image else None,
        "scale": data.scale if data else None,
        "records": data.records if data else None,
        "loader": run.loader,
        "device": run.device,
        "ranks": run.ranks,
        "workers per rank": run.workers,
        "batch size": run.batch_size,
        "steps": summary.steps.count,
        "status": run.status,
    }
    return {key: MISSING if value is None else clean(value, 60) for key, value in values.items()}
