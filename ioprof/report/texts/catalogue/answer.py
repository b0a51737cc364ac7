"""The verdict and the findings of a summary, in words."""

from collections.abc import Mapping
from typing import Any, Final

from ioprof.analysis.reads.storage_bytes import untimed_facts
from ioprof.format.run_record import Capture, Finding, JobKind, Sentence, Subject, Summary
from ioprof.report.texts.catalogue import actions, sentences
from ioprof.report.texts.catalogue.filling import fill
from ioprof.report.texts.catalogue.options import options_of

_FORMS: Final = actions.FORMS | sentences.FORMS
_SUBJECTS: Final = ("line", "file", "thread", "rank", "phase")
"""Facts that say what a finding is about, the first that is there."""
_OF_OLDER_RUNS: Final = "other"


def in_words(summary: Summary) -> Summary:
    """The summary, whose verdict and findings say what their codes mean; those of older runs, which
    have words alone, stay as they are.
    """
    kind, verdict = summary.run.job, summary.verdict
    text = verdict_text(verdict.sentences, kind) if verdict.sentences else verdict.text
    findings, candidates = (
        tuple(_in_words(each, kind) for each in found)
        for found in (verdict.findings, verdict.candidates)
    )
    verdict = verdict.replace(text=text, findings=findings, candidates=candidates)
    return summary.replace(verdict=verdict)


def verdict_text(said: tuple[Sentence, ...], kind: JobKind) -> str:
    """Sentences, one after the other."""
    text = ""
    for each in said:
        template = sentences.SENTENCES[each.code]
        meaning = str(each.facts.get("meaning"))
        meant = sentences.OTHER_MEANINGS.get(meaning) or sentences.MEANINGS.get(meaning, "")
        more = _filled(template.replace("<meaning>", meant), each.facts, kind)
        more = f"{more[:1].lower()}{more[1:]}" if text.endswith(":") else more
        text += f" {more}" if text else more
    return text


def action_text(found: Finding, kind: JobKind) -> str:
    """What to change."""
    why = actions.WHY.get(str(found.facts.get("why")), "")
    text = _filled(actions.ACTIONS[found.code].replace("<why>", why), found.facts, kind)
    if who := found.facts.get("if_latency"):
        facts = {"action": text, **({"of_peer": True} if who == "peer" else {})}
        return _filled(actions.IF_LATENCY, facts, kind)
    return text


def untimed_text(capture: Capture) -> str:
    """What came from storage and was not timed, as a sentence without its end."""
    return _filled(sentences.UNTIMED, untimed_facts(capture), JobKind.OTHER)


def _in_words(found: Finding, kind: JobKind) -> Finding:
    if found.code == _OF_OLDER_RUNS:
        return found
    price = actions.PRICES.get(found.code) or actions.PRICES_OF_CAUSES.get(
        found.cause or "", actions.OTHER_PRICE
    )
    reason = actions.REASONS_OF_CODES.get(found.code) or (
        actions.REASONS.get(found.no_gain) if found.no_gain else None
    )
    return found.replace(
        action=action_text(found, kind),
        subject=_subject(found),
        price=_filled(price, found.facts, kind) if found.costs else None,
        reason=found.reason or (reason if found.no_gain else None),
    )


def _subject(found: Finding) -> Subject:
    """What a finding is about: what its facts name, else the setting that it changes, its cause, or
    the job.
    """
    for name in _SUBJECTS:
        if name in found.facts:
            return Subject(name, str(found.facts[name]))
    changed = [
        name for name in (found.change.to_dict() if found.change else ()) if name != "speeds"
    ]
    if changed:
        return Subject("setting", changed[0])
    return Subject("stage", found.cause) if found.cause else Subject("job", found.code)


def _filled(template: str, facts: Mapping[str, Any], kind: JobKind) -> str:
    return fill(template, facts, options_of(kind), _FORMS)
