"""How far predictions of `ioprof whatif` are from runs that are made afterwards with the predicted
change.

    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/what_if.py [--only WORD] [--json FILE] [--keep FOLDER] [--paired [--until HH:MM]]
    python benchmarks/what_if.py --removals
    python benchmarks/what_if.py --again FOLDER [FOLDER ...] [--shown]
    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/what_if.py --more FOLDER [--until HH:MM]
    python benchmarks/what_if.py --medians FOLDER

For each scenario a job is recorded, all of its changes are predicted, and then the job is recorded
again with each change. The error is that of the time of a steady step: predicted over measured,
less one. The first job is also recorded a second time without a change: the difference is the
machine's own noise, beside which the errors must be read. Storage is real: a throttled loop device,
and a FUSE server with a latency (both need root; scenarios without them are left out, and named).

With `--paired` the job is recorded anew directly before each changed run, and the change is
predicted from that run: of a machine whose speed changes within minutes, less is then charged to
the prediction. A first run of which reports predict nothing, since other programs competed with it,
is made once more. The noise is then the difference of the job to that of the pair before. `--until`
begins no pair after that time, and the pairs that are left are named.

Where the machine's noise is as large as the errors that are asked for, medians say more: `--more`
makes each changed run of kept pairs once more, and `--medians` predicts each change from all first
runs of its job. The error is the median of these predictions over the median of the changed runs,
less one. Beside it stands what comes of no change: the median of as many first runs over that of
the other ones.

`--removals` asks for what a report calls the gain of a cause: what the job would gain if it cost
nothing. The job is then made without it: from memory instead of from storage, without decoding,
without the model's computation, and so on. With samples that are made already, a run without
storage and the first one, this is also the differential method of three runs.

`--keep` keeps the run folders, and `--again` predicts them anew, so that two versions of the replay
can be compared on the same runs. With `--shown` it takes the runs of both kinds of scenarios, and
prints the errors by kind of change, as the lines of `model/accuracy.py:SHOWN`: those constants are
made so. Predictions from first runs of which reports predict nothing, since other programs competed
with them, are left out, and named with the reason.

With its default thresholds glibc returns the memory of large tensors to the kernel at each step, in
some processes: the same computation then takes 63 instead of 58 ms, or 10.7 instead of 7.2 ms, and
differs by 10 % from one process to the next. So all jobs keep their memory (`MEMORY`), and differ
by 2 to 4 %.

The FUSE server stands for storage on another machine, so it runs before all other programs
(SCHED_RR): at equal priority reads took up to 1.5 times as long where four to eight workers used
the cores, of which no prediction can know.

The machine itself may compute faster or slower in one run than in another. The errors *at the same
speed* are those of a prediction from a first run whose computation is scaled by what the same
computation took in the changed run; beside them stands how much that differed, below which no
prediction can come.

On a machine with other load, times of one run say little about those of the next. `--real-time`
gives the loops and workers of the jobs (not their imports, and not the recording's own launcher)
the real-time class of the scheduler.
"""  # noqa: E501

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import what_if_medians
from what_if_medians import MedianResult, folder_of_pair, next_run, spread
from what_if_runs import Bench, KeptRuns, Machine, machine, needs, next_time
from what_if_scenarios import REMOVALS, SCENARIOS, Scenario, Variant

from ioprof.errors import IoprofError
from ioprof.format.trace import Trace
from ioprof.model.accuracy import Kind, error_of_others, kinds
from ioprof.model.changed import changed, with_factors
from ioprof.model.gains import gains_of
from ioprof.model.pace import measured, replayed
from ioprof.model.pipeline import OWN, STAGES, Pipeline, Seconds
from ioprof.model.prediction import as_replayed, whatif
from ioprof.model.recorded import pipeline
from ioprof.report.texts.prediction import change_text

Runs = Bench | KeptRuns
SAMPLE = "IOPROF_IMAGENET_SAMPLE"
WORK_OF_WORKER = ("decode", "transform")
"""Stages that compute the same in each run, as far as a change does not touch them."""


@dataclass(frozen=True)
class Result:
    """One prediction and what came of it."""

    scenario: str
    base: str
    """The folder of the first run, from which the change was predicted."""
    run: str
    """The folder of the changed run."""
    change: str
    baseline_error: float
    base_s: float
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    noise: float
    """Time of a step when the same job was recorded another time, over that of the first run, less
    one. NaN: it was not."""
    same_load_s: float
    """What is predicted if other programs compete for the cores as they did in the changed run, and
    not as in the first one."""
    same_speed_s: float
    """What is predicted if the machine computes as fast as it did in the changed run, see
    `speeds`."""
    speeds: tuple[float, float]
    """Time of the same computation in the changed run over that in the first one: of the loop, and
    of a worker."""
    others: tuple[float, float]
    """Threads of other programs that competed with the job: in the first run, and in the changed
    one."""
    kind: str
    """The name of the kind of change, one of `accuracy.Kind`; empty: of several causes."""
    refused: str
    """Why a report predicts nothing from the first run; empty: it does."""

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def points(self) -> float:
        """Predicted gain less the measured one, as shares of the first run's step: what removing a
        cause was said to bring.
        """
        return (self.measured_s - self.predicted_s) / self.base_s

    @property
    def same_load_error(self) -> float:
        return self.same_load_s / self.measured_s - 1

    @property
    def same_speed_error(self) -> float:
        return self.same_speed_s / self.measured_s - 1


@dataclass(frozen=True)
class Predicted:
    """What is predicted of a step."""

    change: str
    factor: float
    """Its time over that of the run without the change."""
    low: float
    high: float
    baseline_error: float


def results(runs: Runs, scenario: Scenario) -> Iterator[Result]:
    """Predicts all changes first, then makes the runs."""
    base = runs.record(scenario.job, "run1")
    first = pipeline(base)
    predictions = [(variant, predicted(base, first, variant)) for variant in scenario.variants]
    again = pipeline(runs.record(scenario.job, "run2"))
    noise = measured(again).step_s / measured(first).step_s - 1
    for number, (variant, found) in enumerate(predictions, 3):
        second = pipeline(runs.record(scenario.changed(variant), f"run{number}"))
        if found is not None:
            yield compared(scenario, variant, found, first, second, ("run1", f"run{number}"), noise)


def paired_results(runs: Runs, scenario: Scenario) -> Iterator[Result]:
    """Records the job for each change, predicts the change from that run, and then makes the
    changed one.
    """
    before_s = math.nan
    for number, variant in enumerate(scenario.variants, 1):
        name, new = f"pair{number}/base", f"pair{number}/changed"
        if not runs.can_record(new):
            print(f"  {text_of(variant)}: left, no pair", flush=True)
            continue
        base = runs.record(scenario.job, name)
        first = pipeline(base)
        if error_of_others(first) and runs.can_record(f"{name}-again"):
            print(f"  {text_of(variant)}: the job once more: others had cores", flush=True)
            name = f"{name}-again"
            base = runs.record(scenario.job, name)
            first = pipeline(base)
        found = predicted(base, first, variant)
        second = pipeline(runs.record(scenario.changed(variant), new))
        base_s = measured(first).step_s
        if found is not None:
            yield compared(
                scenario, variant, found, first, second, (name, new), before_s / base_s - 1
            )
        before_s = base_s


def compared(
    scenario: Scenario,
    variant: Variant,
    found: Predicted,
    first: Pipeline,
    second: Pipeline,
    names: tuple[str, str],
    noise: float,
) -> Result:
    """A prediction from the first run beside the changed run."""
    base_s, first = measured(first).step_s, as_replayed(first, variant.change)
    whole_s = replayed(first).step_s
    at_load = replayed(with_change(replace(first, others=second.others), variant)).step_s / whole_s
    of_loop, of_worker = speeds(first, second, variant)
    slowed = with_factors(first, {"compute": of_loop} | dict.fromkeys(WORK_OF_WORKER, of_worker))
    at_speed = replayed(with_change(slowed, variant)).step_s / whole_s
    return Result(
        scenario.name, *names, found.change, found.baseline_error,
        base_s, base_s * found.factor, base_s * found.low, base_s * found.high,
        measured(second).step_s, noise, base_s * at_load, base_s * at_speed, (of_loop, of_worker),
        (sum(first.others.values()), sum(second.others.values())),
        kind_of(variant, first), "others had cores" if error_of_others(first) else "",
    )  # fmt: skip


def speeds(first: Pipeline, second: Pipeline, variant: Variant) -> tuple[float, float]:
    """How long the same computation took in the changed run, over that in the first one: by the
    loop, and by a worker.

    That of the fastest tenth of the batches, which hardly had to share a core, without what the
    change itself makes faster or slower. A batch of another size has costs of its own in the loop,
    which are not the machine's: then the speed of the worker counts for both.
    """
    touched = {*variant.change.speeds, *variant.removed}
    stages = [STAGES.index(stage) for stage in WORK_OF_WORKER if stage not in touched]
    took = [
        np.concatenate([each.tasks.stages_s for each in run.ranks[0].iterations])[:, stages].sum(1)
        for run in (first, second)
    ]
    of_worker = ratio_of_fastest(*took) * (first.batch_size or 1) / (second.batch_size or 1)
    if variant.change.batch is not None:
        return of_worker, of_worker
    computed = [run.ranks[0].program.after_s[:, OWN.index("compute")] for run in (first, second)]
    return (
        1.0 if "compute" in touched else ratio_of_fastest(*(each[each > 0] for each in computed))
    ), of_worker


def ratio_of_fastest(before: Seconds, after: Seconds) -> float:
    """The 10th percentile after over that before; 1 where one of them is of nothing."""
    fastest = [float(np.quantile(each, 0.1)) if len(each) else 0.0 for each in (before, after)]
    return fastest[1] / fastest[0] if min(fastest) > 0 else 1.0


def kind_of(variant: Variant, recorded: Pipeline) -> str:
    """The kind of a change; of a cause that is taken away, that of a change of its cost."""
    if variant.removed:
        one = Kind.STORAGE if variant.removed == ("storage",) else Kind.STAGE
        return one.name if len(variant.removed) == 1 else ""
    return " ".join(kind.name for kind in kinds(variant.change, recorded))


def predicted(trace: Trace, recorded: Pipeline, variant: Variant) -> Predicted | None:
    """Of a change by `whatif`; of causes at no cost as the gains in a report, with their range
    where it is one cause.
    """
    if variant.removed:
        found = gains_of(recorded)
        text = text_of(variant)
        one = next((each for each in found.gains if (each.cause,) == variant.removed), None)
        if one is not None:
            return Predicted(
                text, 1 - one.share, 1 - one.range.high, 1 - one.range.low, found.baseline_error
            )
        factor = replayed(with_change(recorded, variant)).step_s / replayed(recorded).step_s
        return Predicted(text, factor, math.nan, math.nan, found.baseline_error)
    try:
        change = whatif(trace, variant.change)
    except IoprofError as error:
        print(f"  {change_text(variant.change)}: {error}", flush=True)
        return None
    base_s = change.measured.step_s
    larger = change.predicted.step_s * change.speedup / base_s
    low, high = larger / change.speedup_range.high, larger / change.speedup_range.low
    return Predicted(
        change_text(change.change),
        change.predicted.step_s / base_s,
        low,
        high,
        change.baseline_error,
    )


def factors(
    trace: Trace, recorded: Pipeline, variant: Variant
) -> tuple[float, float, float] | None:
    """See `what_if_medians.Factors`."""
    found = predicted(trace, recorded, variant)
    return None if found is None else (found.factor, found.low, found.high)


def text_of(variant: Variant) -> str:
    return (
        f"without {' '.join(variant.removed)}" if variant.removed else change_text(variant.change)
    )


def with_change(recorded: Pipeline, variant: Variant) -> Pipeline:
    return (
        with_factors(recorded, dict.fromkeys(variant.removed, 0.0))
        if variant.removed
        else changed(recorded, variant.change)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="scenarios with this word in their name")
    parser.add_argument(
        "--removals",
        action="store_true",
        help="take causes away, instead of changing them: what gains promise",
    )
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="loops and workers come before all other programs of the machine (SCHED_RR; root)",
    )
    parser.add_argument(
        "--paired", action="store_true", help="record the job anew before each changed run"
    )
    parser.add_argument(
        "--until", metavar="HH:MM", help="with --paired: begin no pair after that time"
    )
    parser.add_argument("--keep", type=Path, help="keep the run folders in this folder")
    parser.add_argument(
        "--again",
        type=Path,
        nargs="+",
        default=(),
        help="predict the runs that earlier calls kept in these folders",
    )
    parser.add_argument(
        "--more",
        type=Path,
        metavar="FOLDER",
        help="make the changed runs of the pairs in this folder once more",
    )
    parser.add_argument(
        "--medians",
        type=Path,
        metavar="FOLDER",
        help="medians of all runs of the pairs in this folder",
    )
    parser.add_argument(
        "--shown",
        action="store_true",
        help="with --again: print the errors by kind of change, for accuracy.py",
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    if options.until and not (options.paired or options.more):
        parser.error("--until: it is for pairs of runs; add --paired, or --more FOLDER")
    known = (
        (*SCENARIOS, *REMOVALS) if options.shown else REMOVALS if options.removals else SCENARIOS
    )
    chosen = [scenario for scenario in known if options.only in scenario.name]
    if options.more or options.medians:
        if not options.more or record_more(chosen, options):
            say_medians(chosen, options)
        return
    found = predicted_again(chosen, options.again) if options.again else recorded(chosen, options)
    if options.json:
        options.json.write_text(
            json.dumps([as_json(result) for result in found], indent=1, allow_nan=False)
        )
    say(found)
    if options.shown:
        say_shown(found)


def as_json(result: Result) -> dict[str, Any]:
    """Its fields and errors; what is not known is null."""
    errors = {
        name: getattr(result, name) for name in ("error", "same_load_error", "same_speed_error")
    }
    values = vars(result) | errors
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in values.items()
    }


def told(scenario: Scenario, found: Iterator[Result]) -> Iterator[Result]:
    """The results of a scenario, each printed when it is there."""
    print(f"{scenario.name}: {json.dumps(scenario.settings)}", flush=True)
    for result in found:
        print(line(result), flush=True)
        yield result


def predicted_again(chosen: list[Scenario], folders: list[Path]) -> list[Result]:
    """The results of runs that were kept, in pairs or not."""
    found = list[Result]()
    for folder, scenario in itertools.product(folders, chosen):
        kept = folder / folder_name(scenario)
        if kept.is_dir():
            compare = paired_results if any(kept.glob("pair*")) else results
            found += told(scenario, compare(KeptRuns(kept), scenario))
    return found


def recorded(chosen: list[Scenario], options: argparse.Namespace) -> list[Result]:
    """The results of new runs."""
    if lacks_images():
        return []
    compare: Callable[[Runs, Scenario], Iterator[Result]] = (
        paired_results if options.paired else results
    )
    found = list[Result]()
    with bench_machine(chosen, options) as (here, folder):
        for scenario in chosen:
            if reason := needs(scenario.storage):
                print(f"{scenario.name}: not measured; {reason}")
                continue
            place = (
                options.keep / folder_name(scenario)
                if options.keep
                else Path(tempfile.mkdtemp(dir=folder))
            )
            found += told(scenario, compare(Bench(here, place), scenario))
    return found


def lacks_images() -> bool:
    """Whether there are no images to record with, which is said."""
    if not os.environ.get(SAMPLE):
        print(f"what-if: not measured; set {SAMPLE} to a folder of images")
    return not os.environ.get(SAMPLE)


def record_more(chosen: list[Scenario], options: argparse.Namespace) -> bool:
    """Make the changed runs of kept pairs once more; whether that could be done."""
    if lacks_images():
        return False
    with bench_machine(chosen, options) as (here, _):
        for scenario in chosen:
            if reason := needs(scenario.storage):
                print(f"{scenario.name}: not measured; {reason}")
                continue
            kept, numbers = (
                options.more / folder_name(scenario),
                range(1, len(scenario.variants) + 1),
            )
            made = [
                number for number in numbers if (kept / folder_of_pair(number) / "changed").is_dir()
            ]
            bench = Bench(here, kept)
            for number in made:
                name = next_run(kept, number)
                if bench.can_record(name):
                    bench.record(scenario.changed(scenario.variants[number - 1]), name)
                else:
                    print(
                        f"{scenario.name}, {text_of(scenario.variants[number - 1])}: left, no"
                        " further run"
                    )
    return True


def say_medians(chosen: list[Scenario], options: argparse.Namespace) -> None:
    """Print the medians of kept pairs."""
    found = list[MedianResult]()
    for scenario in chosen:
        kept = (options.medians or options.more) / folder_name(scenario)
        if kept.is_dir():
            print(scenario.name, flush=True)
            for result in what_if_medians.medians(scenario, kept, factors, text_of):
                print(what_if_medians.line(result), flush=True)
                found.append(result)
    if options.json:
        options.json.write_text(
            json.dumps([vars(result) | {"error": result.error} for result in found], indent=1)
        )
    what_if_medians.say(found)


def bench_machine(
    chosen: list[Scenario], options: argparse.Namespace
) -> AbstractContextManager[tuple[Machine, Path]]:
    """The machine to record on."""
    until = next_time(options.until, datetime.now()) if options.until else None
    return machine(Path(os.environ[SAMPLE]), chosen, options.real_time, until)


def folder_name(scenario: Scenario) -> str:
    return scenario.name.replace(" ", "-")


def line(result: Result) -> str:
    times = (result.predicted_s, result.low_s, result.high_s, result.measured_s)
    predicted_ms, low_ms, high_ms, measured_ms = (seconds * 1e3 for seconds in times)
    return (
        f"  {result.change:34} {result.base}, {result.run}: predicted {predicted_ms:8.2f} ms"
        f" ({low_ms:.2f} to {high_ms:.2f}), measured {measured_ms:8.2f} ms, error"
        f" {result.error:+6.1%}, gain {100 * result.points:+5.1f} points, at the same load"
        f" {result.same_load_error:+6.1%}, at the same speed {result.same_speed_error:+6.1%} (loop"
        f" {result.speeds[0]:.2f}, worker {result.speeds[1]:.2f}), baseline"
        f" {result.baseline_error:+6.1%}, noise {result.noise:+6.1%}, others"
        f" {result.others[0]:.1f}, {result.others[1]:.1f}"
        + (f", reports predict nothing: {result.refused}" if result.refused else "")
    )


def say(found: list[Result]) -> None:
    if not found:
        return
    noise = sorted(
        each
        for _, each in {(result.scenario, abs(result.noise)) for result in found}
        if not math.isnan(each)
    )
    inside = sum(result.low_s <= result.measured_s <= result.high_s for result in found)
    print(f"{len(found)} changed runs, {inside} of them inside of the predicted range")
    points = [abs(100 * result.points) for result in found]
    print(
        f"gain: median {statistics.median(points):.1f} points off, worst {max(points):.1f}, "
        f"{sum(each <= 5 for each in points)} of {len(points)} within 5"
    )
    of_told = [result for result in found if not result.refused]
    for what, of, error in (
        ("error", found, lambda result: result.error),
        ("error at the same load", found, lambda result: result.same_load_error),
        ("error at the same speed", found, lambda result: result.same_speed_error),
        *(
            (("error where reports predict", of_told, lambda result: result.error),)
            if 0 < len(of_told) < len(found)
            else ()
        ),
    ):
        print(f"{what}, {len(of)} runs: {spread([error(result) for result in of])}")
    if noise:
        print(f"the same job twice: median {statistics.median(noise):.1%}, worst {noise[-1]:.1%}")
    for what, place in (("loop", 0), ("worker", 1)):
        print(
            f"the same computation of the {what} again:"
            f" {spread([result.speeds[place] - 1 for result in found])}"
        )


def say_shown(found: list[Result]) -> None:
    """The errors by kind, as `accuracy.SHOWN` has them: rounded up to whole percents."""
    for kind in Kind:
        errors = sorted(
            abs(result.error) for result in found if result.kind == kind.name and not result.refused
        )
        if errors:
            most = math.ceil(100 * errors[math.ceil(0.95 * len(errors)) - 1]) / 100
            print(
                f"Kind.{kind.name}: Accuracy({len(errors)}, {most:.2f}),  # median"
                f" {statistics.median(errors):.3f}"
            )
    for result in (each for each in found if each.refused):
        print(
            f"left out: {result.scenario}, {result.change}, {result.error:+.1%}: {result.refused}"
        )


if __name__ == "__main__":
    main()
