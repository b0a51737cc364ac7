"""The verdict and the findings of a summary, in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ioprof.analysis.capture import IMPORT_DAMAGE
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.analysis.reads.storage_bytes import URING, untimed_facts
from ioprof.format.run_record import (
    Capture,
    CauseShare,
    Cost,
    Finding,
    JobKind,
    Reads,
    ReplayRecord,
    Sentence,
    Subject,
    Summary,
)
from ioprof.model.prediction import Prediction
from ioprof.report.texts.catalogue import actions, findings, gaps, sentences
from ioprof.report.texts.catalogue.assumptions import ASSUMPTIONS
from ioprof.report.texts.catalogue.filling import fill, tell
from ioprof.report.texts.catalogue.options import options_of
from ioprof.report.texts.units import shares

_FORMS: Final = actions.FORMS | sentences.FORMS
_SUBJECTS: Final = ("line", "file", "thread", "rank", "phase")
"""Facts that say what a finding is about, the first that is there."""
_OF_OLDER_RUNS: Final = "other"
_SHARES: Final = ("share", "waits", "compute", "idle", "rest", "next_share", "larger_share")
"""Facts that are shares of the steps' time, as those of causes."""
_SAME: Final = 1e-9


def in_words(summary: Summary) -> Summary:
    """The summary, whose codes have words beside them; those of older runs, which have words alone,
    stay as they are.
    """
    kind, verdict, printed = summary.run.job, summary.verdict, _printed(summary.steps.causes)
    said = tuple(each.replace(facts=_as_printed(each.facts, printed)) for each in verdict.sentences)
    text = verdict_text(said, kind) if said else verdict.text
    told, candidates = (
        tuple(_in_words(each, kind, summary.replay, printed) for each in found)
        for found in (verdict.findings, verdict.candidates)
    )
    more, causes = summary.findings, map(_cause_in_words, summary.steps.causes)
    return summary.replace(
        verdict=verdict.replace(text=text, findings=told, candidates=candidates),
        capture=_capture_in_words(summary.capture),
        steps=summary.steps.replace(causes=tuple(causes)),
        findings=more.replace(reads=_reads_in_words(more.reads)),
        replay=summary.replay and _replay_in_words(summary.replay),
    )


def prediction_in_words(found: Prediction) -> Prediction:
    """The prediction, whose assumptions say what their codes mean."""
    told = (
        replace(each, text=tell(ASSUMPTIONS[each.code], **each.facts)) for each in found.assumptions
    )
    return replace(found, assumptions=tuple(told))


def gap_texts(found: Iterable[Sentence]) -> tuple[str, ...]:
    """What the recording cannot show, a sentence each."""
    return tuple(
        tell(gaps.GAPS.get(each.code, gaps.OTHER_GAP), code=each.code, **each.facts)
        for each in found
    )


def _capture_in_words(capture: Capture) -> Capture:
    if not capture.gaps and not capture.negligible_gaps:
        return capture
    damage = (each for each in capture.gaps if each.code == IMPORT_DAMAGE)
    by_uring = (each for each in capture.gaps if each.code == URING and each.facts.get("by_uring"))
    return capture.replace(
        not_seen=gap_texts(capture.gaps),
        negligible=gap_texts(capture.negligible_gaps),
        import_damage=gap_texts(damage),
        uring_processes=tuple(tell(gaps.PROCESS, **each.facts) for each in by_uring),
    )


def _cause_in_words(entry: CauseShare) -> CauseShare:
    code = entry.reason_code
    if code is None or (entry.reason and not entry.reason_facts):
        return entry
    return entry.replace(reason=tell(findings.CAUSES.get(code, code.text), **entry.reason_facts))


def _reads_in_words(reads: Reads) -> Reads:
    patterns = tuple(
        each.replace(
            seen=tell(findings.SEEN[each.code], **{"took_s": each.seconds} | each.facts),
            remedy=findings.REMEDIES[each.code],
        )
        if each.facts
        else each
        for each in reads.patterns
    )
    depth = reads.depth
    if depth is not None and depth.why is not None:
        depth = depth.replace(reason=tell(findings.BOUNDS[depth.why.code], **depth.why.facts))
    return reads.replace(patterns=patterns, depth=depth)


def _replay_in_words(found: ReplayRecord) -> ReplayRecord:
    template = actions.REASONS.get(found.reason_code) if found.reason_code else None
    if found.reason or not template:
        return found
    return found.replace(reason=tell(template, baseline_error=found.baseline_error))


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
    pattern = str(found.facts.get("pattern"))
    template = actions.ACTIONS[found.code].replace("<why>", why)
    template = template.replace("<seen>", findings.SEEN.get(pattern, ""))
    template = template.replace("<remedy>", findings.REMEDIES.get(pattern, ""))
    text = _filled(template, found.facts, kind)
    if who := found.facts.get("if_latency"):
        facts = {"action": text, **({"of_peer": True} if who == "peer" else {})}
        return _filled(actions.IF_LATENCY, facts, kind)
    return text


def untimed_text(capture: Capture) -> str:
    """What came from storage and was not timed, as a sentence without its end."""
    return _filled(sentences.UNTIMED, untimed_facts(capture), JobKind.OTHER)


def _printed(causes: Sequence[CauseShare]) -> dict[float, float]:
    """Shares of causes, of all waits for batches, and of the time without computation: as they are,
    to what the table has of them, where decimals add up.
    """
    known = [entry for entry in causes if entry.share is not None]
    rounded = [float(text) / 100 for text in shares([entry.share for entry in known])]
    of_causes = [(entry.share or 0.0, text) for entry, text in zip(known, rounded, strict=True)]
    waits = [both for entry, both in zip(known, of_causes, strict=True) if entry.cause in LEAVES]
    idle = [
        (1 - share, 1 - text)
        for entry, (share, text) in zip(known, of_causes, strict=True)
        if entry.cause == "compute"
    ]
    all_waits = (sum(share for share, _ in waits), sum(text for _, text in waits))
    return dict([all_waits, *idle, *of_causes])


def _as_printed(facts: Mapping[str, Any], printed: Mapping[float, float]) -> dict[str, Any]:
    """The facts, whose shares are those of the table."""
    return {
        name: next((text for share, text in printed.items() if abs(share - value) < _SAME), value)
        if name in _SHARES and isinstance(value, float)
        else value
        for name, value in facts.items()
    }


def _in_words(
    found: Finding, kind: JobKind, replay: ReplayRecord | None, printed: Mapping[float, float]
) -> Finding:
    if found.code == _OF_OLDER_RUNS:
        return found
    of_cause = actions.PRICES_OF_CAUSES.get(found.cause or "", actions.OTHER_PRICE)
    other = actions.PRICE_OF_SETTING if found.costs is Cost.FREE else of_cause
    price = actions.PRICES.get(found.code, other)
    reason = (
        actions.REASONS_OF_CODES.get(found.code) or actions.REASONS.get(found.no_gain)
        if found.no_gain
        else None
    )
    error = replay.baseline_error if replay else None
    return found.replace(
        action=action_text(found.replace(facts=_as_printed(found.facts, printed)), kind),
        subject=_subject(found),
        price=_filled(price, found.facts, kind) if found.costs else None,
        reason=found.reason or (tell(reason, baseline_error=error) if reason else None),
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
