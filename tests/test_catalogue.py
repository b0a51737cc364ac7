"""The catalogue says all that analysis and model find, and they say nothing themselves."""

import ast
import html
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Final

import pytest
import stored
from faults.agreement import printed
from repository import ROOT
from sample_run import sample_run

from ioprof.analysis.reads.read_patterns import PATTERNS
from ioprof.format.run_record import Cost, Finding, JobKind, Summary, sentence
from ioprof.format.schema import CAUSES, NOT_FOLLOWED, NOTED
from ioprof.model.summary import with_gains
from ioprof.report.card import run_card
from ioprof.report.page.answer import MOST_CHANGES, answer
from ioprof.report.texts.brief import brief_text
from ioprof.report.texts.catalogue import actions, findings, gaps, sentences
from ioprof.report.texts.catalogue.answer import in_words
from ioprof.report.texts.catalogue.assumptions import ASSUMPTIONS
from ioprof.report.texts.catalogue.filling import FORMS, fill
from ioprof.report.texts.catalogue.options import options_of
from ioprof.report.texts.headline import headline
from ioprof.report.texts.markdown import markdown
from ioprof.report.texts.statements import cause_rows
from ioprof.report.texts.text import summary_text

_FIELD: Final = re.compile(r"{(\w+)(?::([^}]*))?}")
_OF_CODES: Final = ("finding", "not_modelled", "of_line", "of_detail")
_READS: Final = ("startswith", "endswith", "removeprefix", "removesuffix", "partition", "find")
_WORDS: Final = 5
"""Words of a text from which on it is a sentence, and no name or key."""
WITH_SENTENCES: Final = {"model/refusals.py"}
"""Modules of analysis and model with sentences: those of the error `ReplayError`, whose message is
one of them."""


def _modules(*parts: str) -> Iterator[tuple[str, ast.Module]]:
    for part in parts:
        for path in sorted((ROOT / "ioprof" / part).rglob("*.py")):
            yield str(path.relative_to(ROOT / "ioprof")), ast.parse(path.read_text())


def _called(node: ast.AST) -> str:
    """The name of what a call calls."""
    called = getattr(node, "func", None)
    return str(getattr(called, "attr", getattr(called, "id", "")))


def _codes(*functions: str) -> set[str]:
    """The codes with which analysis and model call these."""
    return {
        text.value
        for _, module in _modules("analysis", "model")
        for call in ast.walk(module)
        if isinstance(call, ast.Call) and _called(call) in functions
        for text in call.args[:2]
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    }


def test_each_code_has_its_words() -> None:
    """What analysis and model find is in the catalogue."""
    assert set() == _codes("said") - sentences.SENTENCES.keys()
    assert set() == _codes("sentence") - gaps.GAPS.keys() - findings.BOUNDS.keys()
    assert set() == _codes("Assumption") - ASSUMPTIONS.keys()
    assert set() == {*NOTED, *NOT_FOLLOWED} - gaps.GAPS.keys()
    assert [set(PATTERNS)] * 2 == [findings.SEEN.keys(), findings.REMEDIES.keys()]
    codes = _codes(*_OF_CODES)
    assert set() == codes - actions.ACTIONS.keys() - set(CAUSES)
    assert {"workers", "line", "shards"} <= codes


@pytest.mark.parametrize("kind", JobKind)
def test_each_template_can_be_filled(kind: JobKind) -> None:
    """Without any fact, with the options of any kind of job: no form and no option is wrong."""
    templates = [*actions.ACTIONS.values(), *actions.WHY.values(), *actions.PRICES.values()]
    templates += [*sentences.SENTENCES.values(), *sentences.OTHER_MEANINGS.values()]
    templates += [*gaps.GAPS.values(), *findings.SEEN.values(), *findings.BOUNDS.values()]
    templates += [*findings.CAUSES.values(), *ASSUMPTIONS.values(), *actions.REASONS.values()]
    words = actions.FORMS | sentences.FORMS
    for template in templates:
        assert template.count("[") == template.count("]")
        assert "{" not in fill(template, {}, options_of(kind), words)
        for name, form in _FIELD.findall(template):
            known = form in FORMS or form in words or hasattr(options_of(kind), form)
            assert known or format(1.5 if "f" in form or "%" in form else 1, form), name


def test_alternatives_are_chosen_by_what_is_known() -> None:
    """The first all of whose facts are known; text without an alternative has a word for the
    rest."""
    template = "it takes {took:ms}[ at {line}[ ({share:.0%})]|, {many:if}at many lines]."
    options = options_of(JobKind.TORCH)
    assert "it takes 2.00 ms." == fill(template, {"took": 0.002}, options)
    assert "it takes unknown, at many lines." == fill(template, {"many": True}, options)
    facts = {"took": 0.0, "line": "a[0].py|{x}:3", "many": True}
    assert "it takes 0.00 ms at a[0].py|{x}:3." == fill(template, facts, options)
    facts |= {"share": 0.5}
    assert "it takes 0.00 ms at a[0].py|{x}:3 (50%)." == fill(template, facts, options)


def test_advice_of_an_older_run_is_read_as_findings() -> None:
    """With its words, its gain, and what it costs in words; it is written again without loss."""
    text = sample_run().summary.to_json()
    value = json.loads(text)
    old = {"action": "Use 8 workers", "predicted_speedup": 1.31, "error": 0.04, "costs": "memory"}
    verdict = {"bound_by": "storage", "text": "Slow.", "advice": [old]}
    older = Summary.from_json(json.dumps({**value, "verdict": verdict}))
    (found,) = older.verdict.findings
    assert found.action == "Use 8 workers"
    assert found.gain == found.predicted_speedup == 1.31
    assert (found.code, found.basis, found.price) == ("other", "predicted", "memory")
    assert older.verdict.findings == older.verdict.advice
    assert older.verdict == in_words(older).verdict
    assert Summary.from_json(older.to_json()).verdict.findings == older.verdict.findings


def test_no_code_of_analysis_or_model_reads_a_sentence() -> None:
    """Texts of verdicts, findings, reasons and patterns are for people."""
    found = [
        f"{name}:{call.lineno}"
        for name, module in _modules("analysis", "model")
        for call in ast.walk(module)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _READS
        and isinstance(call.func.value, ast.Attribute)
        and call.func.value.attr in ("text", "action", "reason", "seen", "remedy", "price")
    ]
    names = [
        f"{name}:{node.lineno}"
        for name, module in _modules("analysis/answer", "analysis/cpu", "analysis/ranks", "model")
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "detail"
        and node.attr in _READS
    ]
    assert [] == found + names


def test_analysis_and_model_have_no_sentences() -> None:
    """None for people, but in the errors that they raise and in the help of options, which stands
    where an option is declared."""
    found = {name for name, module in _modules("analysis", "model") if any(_sentences(module))}
    assert WITH_SENTENCES == found


def _sentences(module: ast.Module) -> Iterator[str]:
    raised = {
        id(part)
        for node in ast.walk(module)
        if isinstance(node, ast.Raise) or _called(node) == "Option"
        for part in ast.walk(node)
    }
    statements = {
        id(node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = re.findall(r"[a-zA-Z']{2,}(?= )", node.value)
            if id(node) not in raised | statements and len(words) >= _WORDS:
                yield f"{node.lineno}: {node.value}"


@pytest.mark.parametrize("code", ["pin_memory", "cpu_quota", "keep_cache"])
def test_a_setting_is_not_called_work_on_the_code(code: str) -> None:
    """Its price agrees with what it costs."""
    summary = sample_run().summary
    found = (Finding(code, costs=Cost.FREE, cause="decode"),)
    told = in_words(summary.replace(verdict=summary.verdict.replace(findings=found)))
    assert "a setting" == told.verdict.findings[0].price


def test_shares_of_a_text_are_those_of_the_table() -> None:
    """Where decimals add up, that of a sum is the sum of the decimals."""
    summary = sample_run().summary
    found = {"compute": 0.5602, "storage": 0.14664, "decode": 0.14664, "transform": 0.14652}
    causes = tuple(
        each.replace(seconds=found.get(each.cause, 0.0), share=found.get(each.cause, 0.0))
        for each in summary.steps.causes
    )
    facts = {"waits": 0.4398, "compute": 0.5602, "idle": 0.4398, "cause": "decode"}
    sentences = (sentence("batches", **facts, stages={"decode": 1.0}),)
    summary = summary.replace(
        steps=summary.steps.replace(causes=causes, straggler_wait_s={}),
        verdict=summary.verdict.replace(sentences=sentences, bound_by="decode", findings=()),
    )
    told = in_words(summary)
    rows = {row.cause: row.share for row in cause_rows(causes)}
    waits = sum(Decimal(rows[cause]) for cause in ("storage", "decode", "transform"))
    assert Decimal("44.0") == waits
    assert f"{waits}% went to waiting for batches" in told.verdict.text
    assert f"waiting for batches ({waits}%" in headline(told)


def test_all_forms_of_a_report_have_the_same_findings(tmp_path: Path) -> None:
    """The first screen, which has room for one, the report, Markdown, the page and a notebook's
    card: each with its gain, in the order of the summary."""
    case = stored.slug("checkpoints that are flushed and renamed")
    run = with_gains(stored.replayed("code", case, tmp_path / "spool")[0])
    summary = run.summary
    findings = summary.verdict.findings[:MOST_CHANGES]
    assert MOST_CHANGES == len(findings)
    for each in findings:
        assert each.action
        assert each.subject
        assert each.facts
        assert each.costs
    forms = [
        printed(brief_text(summary, run.steps)),
        printed(summary_text(summary)),
        markdown(summary, run.steps).replace("\\", ""),
        html.unescape(str(answer(summary))),
        html.unescape(run_card(summary)),
    ]
    for place, form in enumerate(forms):
        words = " ".join(re.sub("<[^>]*>|[│|]", " ", form).split())
        for each in findings if place else findings[:1]:
            for part in (" ".join(each.action.split()[:_WORDS]), f"{each.gain:.2f} ×"):
                _, found, words = words.partition(part)
                assert part == found
