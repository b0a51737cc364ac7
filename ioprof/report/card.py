"""What a notebook shows of a run, or of a comparison: a small piece of HTML that needs no script
and no page around it.
"""

from typing import Final

from ioprof.format.run_record import Summary
from ioprof.report.page.answer import MOST_CHANGES
from ioprof.report.page.compare_page import ComparedRuns, names_of, step_bars
from ioprof.report.page.markup import Html, element
from ioprof.report.palette import cause_styles
from ioprof.report.texts.caveats import limits
from ioprof.report.texts.difference_text import difference_text
from ioprof.report.texts.headline import headline
from ioprof.report.texts.prediction import gain_text
from ioprof.report.texts.statements import cause_rows, failures, setting, title
from ioprof.report.texts.units import ADVICE_LENGTH, clean
from ioprof.report.texts.whole_job import window_text

_LEAST_NAMED: Final = 0.005
_STYLE: Final = """
.ioprof{max-width:920px;padding:10px 16px;border:1px solid #8886;border-radius:6px;font:14px/1.45 system-ui,sans-serif}
.ioprof p,.ioprof ul,.ioprof ol{margin:4px 0}.ioprof .quiet{opacity:.72}.ioprof .bad{color:#c4432f;font-weight:600}
.ioprof .stack{display:flex;height:18px;margin:8px 0 4px;overflow:hidden;border-radius:4px;background:#8883;min-width:120px}
.ioprof .stack i{display:block;background:var(--cause)}
.ioprof .keys{display:flex;flex-wrap:wrap;gap:2px 16px;padding:0;list-style:none}
.ioprof .swatch{display:inline-block;width:10px;height:10px;margin-right:5px;border-radius:2px;background:var(--cause)}
.ioprof table{width:100%;border-collapse:collapse}.ioprof td,.ioprof th{padding:3px 12px 3px 0;text-align:left;font-weight:400}
.ioprof td:last-child{width:60%}.ioprof details{display:none}
"""  # noqa: E501


def _card(*children: Html | None) -> str:
    return element(
        "div", element("style", Html(_STYLE + cause_styles())), *children, class_="ioprof"
    )


def run_card(summary: Summary) -> str:
    """The answer, the bar of causes, at most three changes, and what limits the answer."""
    shown = [entry for entry in summary.steps.causes if entry.share]
    printed = {row.cause: row.share for row in cause_rows(summary.steps.causes)}
    parts = (
        element("i", class_=f"cause-{entry.cause}", style=f"width:{(entry.share or 0) * 100:.3f}%")
        for entry in shown
    )
    named = sorted(
        (entry for entry in shown if (entry.share or 0) >= _LEAST_NAMED),
        key=lambda entry: -(entry.share or 0),
    )
    keys = [
        element(
            "li",
            element("i", class_=f"swatch cause-{entry.cause}"),
            f"{entry.cause.replace('_', ' ')} {printed[entry.cause]}%",
        )
        for entry in named
    ]
    changes = [
        element(
            "li",
            clean(entry.action, ADVICE_LENGTH),
            element("span", f" {text}", class_="quiet") if (text := gain_text(entry)) else None,
        )
        for entry in summary.verdict.findings[:MOST_CHANGES]
    ]
    names = limits(summary)
    return _card(
        *(element("p", line, class_="bad") for line in failures(summary)[:2]),
        *([element("p", f"Of {window}.")] if (window := window_text(summary)) else []),
        element("p", element("strong", headline(summary))),
        element("p", f"{title(summary)}: {setting(summary)}", class_="quiet"),
        element("div", *parts, class_="stack") if shown else None,
        element("ul", *keys, class_="keys") if keys else None,
        element("ol", *changes) if changes else None,
        element("p", f"Limits: {', '.join(names)}", class_="quiet") if names else None,
    )


def comparison_card(compared: ComparedRuns) -> str:
    """A bar for each run on one axis of time, and what differs from the first in words."""
    names = names_of([run.summary for run in compared.runs])
    lines = [
        element("li", element("strong", name), f": {difference_text(entry)}")
        for name, entry in zip(names[1:], compared.differences, strict=True)
    ]
    return _card(step_bars(compared, names), element("ul", *lines))
