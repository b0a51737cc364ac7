"""Runs a job again, without and with a change that its report advises."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ioprof.analysis.run import Run
from ioprof.errors import CommandError
from ioprof.jobs.options import RunOptions
from ioprof.jobs.repeating import options_of_run, with_change
from ioprof.jobs.training_run import run_job
from ioprof.replay.prediction import Range
from ioprof.replay.proof import Proof, mean_ratio
from ioprof.replay.summary import with_gains
from ioprof.reporter import Reporter
from ioprof.run_record import Advice


def prove_advice(
    run: Run, number: int, pairs: int, folder: Path, force: bool, environment: Mapping[str, str], reporter: Reporter
) -> Proof:
    """What the advice with that number brings, in so many pairs of runs, which go into the folder; see `ioprof.prove`."""
    if pairs < 1:
        raise CommandError(f"--pairs {pairs}: must be at least 1")
    options = options_of_run(run.trace.run)
    found = with_gains(run).summary.verdict.advice
    if not 1 <= number <= len(found):
        there = f"its report has {len(found)}" if found else "its report has none"
        raise CommandError(f"--advice {number}: there is no such advice; {there}")
    advice = found[number - 1]
    if advice.change is None:
        raise CommandError(f"--advice {number}: ioprof cannot make this change itself: {advice.action}")
    options = replace(options, force=force)
    changed = with_change(options, advice.change)
    folder.mkdir(parents=True, exist_ok=True)
    ratios, folders = list[float](), list[str]()
    for pair in range(1, pairs + 1):
        both = {name: folder / f"{pair}-{name}" for name in ("before", "after")}
        # The order alternates, so that whatever drifts meanwhile does not favour one of them.
        order = ("before", "after") if pair % 2 else ("after", "before")
        rates = {}
        for name in order:
            reporter.say(f"pair {pair} of {pairs}, {'with' if name == 'after' else 'without'} the change: {both[name]}")
            rates[name] = _rate(changed if name == "after" else options, both[name], environment, reporter)
        folders += [str(both["before"]), str(both["after"])]
        ratios.append(rates["after"] / rates["before"])
    mean, between = mean_ratio(tuple(ratios))
    return Proof(
        action=advice.action, predicted=advice.predicted_speedup, predicted_range=_range(advice), reason=advice.reason,
        measured=mean, measured_range=between, pairs=tuple(ratios), runs=tuple(folders),
    )  # fmt: skip


def _rate(options: RunOptions, out: Path, environment: Mapping[str, str], reporter: Reporter) -> float:
    """Samples per second in the steady state of a new run."""
    made = run_job(replace(options, out=out), ("ioprof", "prove", "--out", str(out)), environment, reporter)
    rates = made.summary.throughput
    rate = rates.steady_samples_per_s or rates.samples_per_s
    if made.trace.run.status != "complete" or not rate:
        raise CommandError(f"{out}: the job did not complete, so nothing can be compared; see: ioprof report {out}", exit_code=1)
    return rate


def _range(advice: Advice) -> Range | None:
    return None if advice.low is None or advice.high is None else Range(advice.low, advice.high)
