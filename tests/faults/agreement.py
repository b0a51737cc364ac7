"""Whether a report contradicts itself: headline, bar, table and advice, and words that do not fit
the job (DESIGN 8, law 9)."""

import re
from collections.abc import Iterator
from decimal import Decimal
from io import StringIO
from typing import Final

from rich.console import Console, RenderableType

from ioprof.analysis.charge.blame import blame
from ioprof.analysis.reads.lineage import LEAVES
from ioprof.format.run_record import Finding, JobKind, NoGain, Summary
from ioprof.model.advice import LEAST_AT_ALL
from ioprof.report.run import Run
from ioprof.report.texts.brief import brief_text
from ioprof.report.texts.headline import headline
from ioprof.report.texts.statements import cause_rows, is_on_cpu
from ioprof.report.texts.text import summary_text
from ioprof.report.texts.units import ADVICE_LENGTH

MOST_WORDS: Final = 20
_OF_OTHER_TIME: Final = ("computing_line", "first_epoch", "filled")
"""Sentences that say that others are of later epochs, or that host counts as computing."""
_OTHER_JOBS: Final = re.compile(
    r"ioprof (run|convert)\b|(?<!\w)--(workers|batch-size|steps|cache|copy|loader)\b"
)
_ACCELERATOR: Final = re.compile(r"(?<![/.\w])(GPUs?|[Aa]ccelerators?)(?![/\w])")  # not in paths


def printed(shown: RenderableType) -> str:
    """What the terminal shows."""
    text = StringIO()
    Console(file=text, width=100, soft_wrap=True).print(shown)
    return text.getvalue()


def contradictions(run: Run) -> list[str]:
    """What the parts of a report say otherwise than each other; empty: nothing."""
    summary = run.summary
    brief, report = printed(brief_text(summary, blame(run.trace))), printed(summary_text(summary))
    found = [*_of_words(run, f"{brief}\n{report}"), *_without_gain(summary)]
    if summary.verdict.bound_by is not None:
        found += [*_of_headline(summary, brief), *_of_causes(summary, brief), *_of_advice(summary)]
        found += _of_shares(summary)
    return found


def _of_words(run: Run, said: str) -> Iterator[str]:
    if is_on_cpu(run.summary) and (match := _ACCELERATOR.search(said)):
        yield f"says {match[0]!r} of a job on the CPU"
    if run.trace.run.job_kind is not JobKind.BUILT_IN and (match := _OTHER_JOBS.search(said)):
        yield f"says {match[0]!r} of a recorded script"


def _without_gain(summary: Summary) -> Iterator[str]:
    later = [each.gain is not None for each in summary.verdict.findings[1:]]
    if later != sorted(later, reverse=True):
        yield "an advice without a number stands before one that has one"
    for advice in summary.verdict.findings:
        gain = advice.gain
        if gain is not None and gain < LEAST_AT_ALL and not advice.is_least:
            yield f"advises what brings {gain:.2f}: {advice.action}"
        if gain is None and not advice.reason:
            yield f"neither a gain nor a reason why there is none: {advice.action}"
        if len(advice.action) > ADVICE_LENGTH:
            yield f"is cut where it is shown: {advice.action}"


def _of_headline(summary: Summary, brief: str) -> Iterator[str]:
    """It begins the report; each of its numbers is one of the table, or the sum of the waits for
    batches, and the first is the largest."""
    head, shares = headline(summary), _printed(summary)
    if head not in " ".join(brief.split()):
        yield f"the one-screen report does not begin with: {head}"
    if len(head.split()) > MOST_WORDS:
        yield f"a long headline: {head}"
    waits = sum((shares[cause] for cause in shares if cause in LEAVES), Decimal(0))
    groups = [waits, *(shares[cause] for cause in shares if cause not in LEAVES)]
    of_steps = head.rpartition("its steps: ")[2]
    numbers = [Decimal(text) for text in re.findall(r"([0-9.]+)%", of_steps)]
    if not set(numbers) <= {waits, *shares.values()}:
        yield f"numbers of no bar: {head}"
    if numbers[0] != max(groups):
        yield f"the largest part is not first: {head}"


def _of_shares(summary: Summary) -> Iterator[str]:
    """What the text says of the next cause, and of waits for batches, is in the table, or the text
    says what else is in it."""
    text, shares = summary.verdict.text, _printed(summary)
    if any(each.code in _OF_OTHER_TIME for each in summary.verdict.sentences):
        return
    for match in re.finditer(r"next comes (.+?) with ([0-9.]+)%(?!, [0-9.]+% of it)", text):
        if Decimal(match[2]) != shares[match[1].replace(" ", "_")]:
            yield f"another share than in the table: {match[0]}"
    waits = sum((shares[cause] for cause in shares if cause in LEAVES), Decimal(0))
    match_of_waits = re.search(r"([0-9.]+)% went to waiting for batches", text)
    has_others = "waited for" in text or "slower rank" in text
    if match_of_waits and Decimal(match_of_waits[1]) != waits and not has_others:
        yield f"{waits} in the table: {match_of_waits[0]}"


def _printed(summary: Summary) -> dict[str, Decimal]:
    rows = zip(summary.steps.causes, cause_rows(summary.steps.causes), strict=True)
    return {row.cause: Decimal(row.share) for entry, row in rows if entry.share is not None}


def _of_causes(summary: Summary, brief: str) -> Iterator[str]:
    """The greatest cause but compute, in the table and as the first bar, is the bound, or the text
    says why it is not."""
    verdict, shares = (
        summary.verdict,
        {entry.cause: entry.share or 0.0 for entry in summary.steps.causes},
    )
    bound = verdict.bound_by or ""
    largest = max(shares, key=lambda cause: shares[cause])
    if bound == "compute":
        if largest != "compute" and verdict.first_epoch is None:
            yield f"compute-bound, with most of the time in {largest}"
        return
    explained = {
        bound,
        verdict.first_epoch,
        *(LEAVES if bound in LEAVES else ()),
        *(["straggler"] if "rank " in verdict.text else []),
    }
    largest = max(
        (cause for cause in shares if cause != "compute"), key=lambda cause: shares[cause]
    )
    if largest not in explained and f"{largest.replace('_', ' ')} alone took" not in verdict.text:
        yield f"{bound}-bound, and most of the time is {largest} in the table"
    names = [
        line.split()[0]
        for line in brief.splitlines()
        if re.match(rf"({'|'.join(shares)}) +[0-9.]+%", line)
    ]
    bars = [
        name
        for name in names
        if name == bound or name not in ("compute", "straggler", verdict.first_epoch)
    ]
    if bound in names and bars[:1] != [bound]:
        yield f"{bound}-bound, and the first bar is {bars[:1]}"
    if bound not in names:
        yield f"{bound}-bound, and there is no bar of that"


def _of_advice(summary: Summary) -> Iterator[str]:
    """The first advice acts on the bound, on what the text begins with, or on what the workers
    have."""
    verdict = summary.verdict
    if not verdict.findings:
        if not verdict.device_waits:  # else no change alone brings anything
            yield "no advice"
        return
    first = verdict.findings[0]
    largest = max(summary.steps.causes, key=lambda entry: entry.share or 0.0).cause
    acts = first.cause == largest  # with which the headline begins
    acts = acts or _acts_on(first, verdict.bound_by or "") or _acts_on_beginning(first, summary)
    acts = acts or any(  # as of a validation that waits for the same stage
        each.cause == verdict.bound_by and each.facts.get("part") == first.cause
        for each in verdict.findings
    )
    if not acts and not verdict.device_waits:
        yield (
            f"bound by {verdict.bound_by}, and the first advice is about {first.cause}:"
            f" {first.action}"
        )


def _acts_on(advice: Finding, bound: str) -> bool:
    change = advice.change
    is_pipeline = change is not None and bool(
        change.workers or change.prefetch or change.persistent_workers
    )
    return (
        advice.cause == bound
        or ((is_pipeline or advice.cause in LEAVES) and bound in LEAVES)  # which count as one
        or advice.no_gain is NoGain.OF_RECORDING
    )


def _acts_on_beginning(advice: Finding, summary: Summary) -> bool:
    """Of the whole job, of its CPU time, and of a rank that loads for all."""
    if advice.no_gain is NoGain.NOT_OF_STEPS:
        return summary.verdict.phase is not None
    has_limit = summary.cpu is not None and bool(summary.cpu.limits)
    return advice.no_gain is NoGain.NOT_MODELLED and (
        has_limit or summary.run.loading_rank is not None
    )
