"""The first screen of a page: the answer, a bar of root causes, at most three changes, and what
limits them.
"""

from typing import Final

from ioprof.format.run_record import CauseShare, Finding, Summary
from ioprof.report.page.code_section import code_of_causes
from ioprof.report.page.markup import Html, element, join
from ioprof.report.page.sections import CAUSE_MEANINGS, badge, term, tile
from ioprof.report.texts.caveats import limits
from ioprof.report.texts.headline import headline
from ioprof.report.texts.prediction import gain_text, proof_hint
from ioprof.report.texts.statements import (
    cause_rows,
    failures,
    is_emulated,
    setting,
    title,
)
from ioprof.report.texts.units import clean, duration, percent, rate
from ioprof.report.texts.whole_job import window_text

MOST_CHANGES: Final = 3
_LEAST_NAMED: Final = 0.005
"""Share of the steps' time from which a cause is named below the bar."""
_SECTIONS: Final = (
    ("time", "Timeline"),
    ("causes", "Causes"),
    ("steps", "Steps"),
    ("storage", "Storage"),
    ("workers", "Workers"),
    ("ranks", "Ranks"),
    ("complete", "Completeness"),
    ("reading", "Glossary"),
)


def header(summary: Summary) -> Html:
    """The name of the run, what it was, and the contents."""
    started = summary.run.started
    window = window_text(summary)
    about = [
        f"{window[:1].upper()}{window[1:]}" if window else "",
        setting(summary),
        f"Started {clean(started)}" if started else "",
    ]
    links = (element("a", word, href=f"#{name}") for name, word in _SECTIONS)
    return element(
        "header",
        element(
            "div",
            element("span", "ioprof", class_="brand"),
            element("h1", title(summary)),
            class_="title",
        ),
        element("p", ". ".join(text for text in about if text), class_="quiet"),
        element("nav", *links, aria_label="Contents"),
    )


def answer(summary: Summary) -> Html:
    """Failures, the answer, the bar, the changes, and the caveats as links to where they are
    explained.
    """
    banner = [element("p", line) for line in failures(summary)]
    return element(
        "section",
        element("div", *banner, class_="banner", role="alert") if banner else None,
        element("p", headline(summary), class_="headline"),
        _bar(summary.steps.causes),
        element(
            "div",
            _changes(summary.verdict.findings),
            element(
                "div", _tiles(summary), element("p", clean(summary.verdict.text, 900), class_="why")
            ),
            class_="answer-columns",
        ),
        code_of_causes(summary),
        _chips(summary),
        id="verdict",
        aria_label="Answer",
    )


def _bar(causes: tuple[CauseShare, ...]) -> Html | None:
    shown = [entry for entry in causes if entry.share]
    if not shown:
        return None
    parts = (
        element(
            "i",
            element("b", percent(entry.share, 0)) if (entry.share or 0) >= 0.06 else None,
            class_=f"cause-{entry.cause}",
            style=f"width:{(entry.share or 0) * 100:.3f}%",
            title=f"{entry.cause}: {percent(entry.share)}. {CAUSE_MEANINGS.get(entry.cause, '')}",
        )
        for entry in shown
    )
    printed = {row.cause: row.share for row in cause_rows(causes)}
    named = sorted(
        (entry for entry in shown if (entry.share or 0) >= _LEAST_NAMED),
        key=lambda entry: -(entry.share or 0),
    )
    keys = (
        element(
            "li",
            element("i", class_=f"swatch cause-{entry.cause}"),
            f"{entry.cause.replace('_', ' ')} ",
            element("strong", f"{printed[entry.cause]}%"),
            " emulated" if entry.basis == "emulated" else None,
            title=CAUSE_MEANINGS.get(entry.cause),
        )
        for entry in named
    )
    label = "Time of all steps by cause: " + ", ".join(
        f"{entry.cause} {printed[entry.cause]}%" for entry in named
    )
    return join(
        element("div", *parts, class_="stack large", role="img", aria_label=label),
        element("ul", *keys, class_="keys"),
    )


def _tiles(summary: Summary) -> Html:
    found, basis = summary.throughput, "emulated" if is_emulated(summary) else "measured"
    own = found.device_samples_per_s
    reached = (
        percent(found.steady_samples_per_s / own)
        if own and found.steady_samples_per_s is not None
        else None
    )
    tiles = [
        (
            tile(rate(found.steady_samples_per_s), term("steady", "samples/s, steady"), found.basis)
            if found.steady_samples_per_s
            else None
        ),
        (
            tile(
                reached,
                f"of the devices' {rate(own)}",
                "emulated" if is_emulated(summary) else "derived",
            )
            if reached
            else None
        ),
        (
            tile(duration(summary.steps.p50_s), "step, median", basis)
            if summary.steps.p50_s is not None
            else None
        ),
    ]
    return element("div", *tiles, class_="tiles")


def _changes(advice: tuple[Finding, ...]) -> Html | None:
    if not advice:
        return None
    items = [
        element("li", element("span", clean(entry.action, 400)), _gain(entry)) for entry in advice
    ]
    more = element(
        "details",
        element("summary", f"{len(items) - MOST_CHANGES} more"),
        element("ul", *items[MOST_CHANGES:]),
    )
    return element(
        "div",
        element("h2", "What to change"),
        element("ol", *items[:MOST_CHANGES]),
        more if len(items) > MOST_CHANGES else None,
        element("p", hint, class_="gain") if (hint := proof_hint(advice)) else None,
        class_="changes",
    )


def _gain(advice: Finding) -> Html | None:
    """What a change is predicted to bring, its range and cost, or why that is not predicted."""
    if not (text := gain_text(advice)):
        return None
    is_predicted = advice.gain is not None
    return element(
        "p",
        text,
        " ",
        badge("predicted") if is_predicted else None,
        class_="gain" if is_predicted else "gain none",
    )


def _chips(summary: Summary) -> Html | None:
    chips = [element("li", element("a", name, href="#complete")) for name in limits(summary)]
    return (
        element("ul", *chips, class_="chips", aria_label="What limits this answer")
        if chips
        else None
    )
