"""Runs a job again, without and with a change that its report advises."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ioprof.analysis.answer.provable import loader_arguments
from ioprof.analysis.charge.steps import steady_steps_per_s
from ioprof.errors import CommandError
from ioprof.format.run_record import Finding, JobChange, JobKind
from ioprof.jobs.options import RunOptions
from ioprof.jobs.recorded_script import RecordedScript
from ioprof.jobs.repeating import options_of_run, with_change
from ioprof.jobs.training_run import run_job
from ioprof.model.prediction import Range
from ioprof.model.proof import Proof, mean_ratio
from ioprof.model.summary import with_gains
from ioprof.recording.run_folder import JOB_LOG, check_output
from ioprof.report.run import Run
from ioprof.reporter import Reporter

_OTHER_SOURCE: Final = 0.1
"""Difference in the share of bytes from storage between the runs of a pair, from which on the page
cache changes the result."""
_LEAST_STORAGE: Final = 0.05
"""Share of the steps' time, or of the workers', from which on it matters where bytes came from."""

Repeat = Callable[[Path, bool], Run]
"""Runs the job into that folder; True: with the change."""


def prove_advice(
    run: Run,
    number: int,
    pairs: int,
    folder: Path,
    force: bool,
    environment: Mapping[str, str],
    reporter: Reporter,
    command: Sequence[str] | None = None,
) -> Proof:
    """What the advice with that number brings, in so many pairs of runs, which go into the folder;
    see `ioprof.prove`.
    """
    if pairs < 1:
        raise CommandError(f"--pairs {pairs}: must be at least 1")
    recorded = run.trace.run
    script: RecordedScript | None = None
    if recorded.job_kind is JobKind.BUILT_IN:
        if command:
            raise CommandError(
                "the run is of a job of `ioprof run`, which is run again by its settings: leave the"
                " command out"
            )
        options = replace(options_of_run(recorded), force=force)
        advice, change = _advice(run, number)
        repeat = _built_in(options, with_change(options, change), environment, reporter)
    else:
        advice, change = _advice(run, number)
        script = RecordedScript.of(recorded, change, command, environment)
        # of a run made by anybody
        shown = "".join(each if each.isprintable() else "?" for each in shlex.join(script.shown))
        reporter.say(f"{2 * pairs} runs of: {shown}")
        repeat = _recorded(script, force, environment, reporter)
    outs = [
        {name: folder / f"{pair}-{name}" for name in ("before", "after")}
        for pair in range(1, pairs + 1)
    ]
    for both in outs:
        for out in both.values():
            check_output(out, force)
    folder.mkdir(parents=True, exist_ok=True)
    ratios, notes = list[float](), list(script.notes if script else ())
    for pair, both in enumerate(outs, 1):
        # The order alternates, so that whatever drifts meanwhile does not favour one of them.
        made = dict[str, Run]()
        for name in ("before", "after") if pair % 2 else ("after", "before"):
            how = "with" if name == "after" else "without"
            reporter.say(
                f"pair {pair} of {pairs}, {how} the change: {both[name]} (its output: {JOB_LOG}"
                " there)"
            )
            made[name] = repeat(both[name], name == "after")
        ratios.append(_ratio(made["before"], made["after"], both))
        notes += [f"pair {pair}: {each}" for each in differences(made["before"], made["after"])]
    mean, between = mean_ratio(tuple(ratios))
    return Proof(
        action=advice.action,
        predicted=advice.gain,
        predicted_range=_range(advice),
        reason=advice.reason,
        measured=mean,
        measured_range=between,
        pairs=tuple(ratios),
        runs=tuple(str(out) for both in outs for out in both.values()),
        is_bound=advice.is_bound,
        command=script.shown if script else None,
        changed=script.change_text if script else None,
        notes=tuple(notes),
    )


def _advice(run: Run, number: int) -> tuple[Finding, JobChange]:
    """The advice with that number, and what it changes. `CommandError` where there is none, or
    ioprof cannot make the change.
    """
    found = with_gains(run).summary.verdict.findings
    if not 1 <= number <= len(found):
        there = f"its report has {len(found)}" if found else "its report has none"
        raise CommandError(f"--advice {number}: there is no such advice; {there}")
    advice, is_built_in = found[number - 1], run.trace.run.job_kind is JobKind.BUILT_IN
    change = None if "made_at" in advice.facts else advice.change
    if change is None or not (is_built_in or loader_arguments(change)):
        numbers = [str(place) for place, each in enumerate(found, 1) if each.can_be_proved]
        others = (
            f"it can make those of --advice {', '.join(numbers)}"
            if numbers
            else "nor any other of this report"
        )
        raise CommandError(
            f"--advice {number}: ioprof cannot make this change itself ({others}): {advice.action}"
        )
    return advice, change


def _built_in(
    options: RunOptions, changed: RunOptions, environment: Mapping[str, str], reporter: Reporter
) -> Repeat:
    def repeat(out: Path, is_changed: bool) -> Run:
        own = replace(changed if is_changed else options, out=out)
        made = run_job(own, ("ioprof", "prove", "--out", str(out)), environment, reporter)
        if made.trace.run.status != "complete":
            what = "the job did not complete, so nothing can be compared"
            raise CommandError(f"{out}: {what}; see: ioprof report {out}", exit_code=1)
        return made

    return repeat


def _recorded(
    script: RecordedScript, force: bool, environment: Mapping[str, str], reporter: Reporter
) -> Repeat:
    def repeat(out: Path, is_changed: bool) -> Run:
        return script.run(
            out, is_changed=is_changed, force=force, environment=environment, reporter=reporter
        )

    return repeat


def _ratio(before: Run, after: Run, outs: Mapping[str, Path]) -> float:
    """The rate with the change over that without, in the steady state: of samples where they are
    known, else of steps.
    """
    samples = [
        each.summary.throughput.steady_samples_per_s or each.summary.throughput.samples_per_s
        for each in (before, after)
    ]
    steps = [steady_steps_per_s(each.steps) for each in (before, after)]
    for slow, fast in (samples, steps):
        if slow and fast:
            return fast / slow
    out = outs["before"] if not steps[0] else outs["after"]
    raise CommandError(
        f"{out}: too few steps to tell a rate, so nothing can be compared; let the job make more",
        exit_code=1,
    )


def differences(before: Run, after: Run) -> Iterator[str]:
    """What else is different in the runs of a pair and has a part in the result, one sentence
    each.
    """
    seen = [each.summary.storage for each in (before, after)]
    ratios = [each.bytes_from_storage / each.bytes if each.bytes else 0.0 for each in seen]
    entries = [
        cause
        for each in (before, after)
        for cause in each.summary.steps.causes
        if cause.cause == "storage"
    ]
    most = max((max(each.share or 0.0, each.workers_share or 0.0) for each in entries), default=0.0)
    if abs(ratios[0] - ratios[1]) >= _OTHER_SOURCE and most >= _LEAST_STORAGE:
        yield (
            f"{ratios[0]:.0%} of the bytes read came from storage without the change,"
            f" {ratios[1]:.0%} with it: the page cache has a part in the result"
        )
    counts = [each.summary.steps.count for each in (before, after)]
    if (
        counts[0] != counts[1]
        and before.trace.run.config.batch_size == after.trace.run.config.batch_size
    ):
        yield (
            f"{counts[0]:,} steps without the change and {counts[1]:,} with it, so the job did not"
            " do the same; an IterableDataset that does not divide its samples among workers gives"
            " all of them to each"
        )


def _range(advice: Finding) -> Range | None:
    return None if advice.low is None or advice.high is None else Range(advice.low, advice.high)
