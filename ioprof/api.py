"""The public functions of `import ioprof` that do what commands do; each command of the command
line calls its function here.

This is where a Python program's environment and command line are read; everything below takes them
as parameters. Modules are imported when a function is called: a job that uses `ioprof.span` loads
none of them.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ioprof.converters.options import ConversionOptions
from ioprof.instrument.gpu import DEFAULT_WINDOW
from ioprof.jobs.options import ProbeOptions, RunOptions, StudyOptions
from ioprof.options import given_options, takes_options
from ioprof.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from ioprof.analysis.grid import Grid
    from ioprof.analysis.study import Study
    from ioprof.converters import ConversionResult
    from ioprof.format.run_record import EpochPrediction
    from ioprof.format.trace import Trace
    from ioprof.jobs.probes.probing import PathProbe
    from ioprof.model.prediction import Prediction
    from ioprof.model.proof import Proof
    from ioprof.model.simulator.simulation import Simulation
    from ioprof.model.simulator.sizing import Size
    from ioprof.report.explore import Run
    from ioprof.report.run import Run as AnalysedRun
    from ioprof.report.texts.comparison import Comparison

__all__ = [
    "compare",
    "convert",
    "extrapolate",
    "load",
    "probe",
    "profile",
    "record",
    "run",
    "simulate",
    "size",
    "snapshot",
    "study",
    "whatif",
]


def load(path: Path | str) -> "Run":
    """The run in the folder `path`: its summary, tables in milliseconds, and figures.

        run = ioprof.load("runs/first")
        run                                                        # a card in a notebook, one line
                                                                   elsewhere
        run.where(kind="read", source="storage").sort("took_ms")
        run.trace.spans                                            # as recorded, in nanoseconds
                                                                   since the run's zero

    Raises `ioprof.errors.RunError` where there is no run, or a damaged one; its message says what
    to type.
    """
    from ioprof.report.explore import Run

    return Run.load(path)


def record(
    command: Sequence[str | os.PathLike[str]],
    *,
    out: Path | str | None = None,
    force: bool = False,
    gpu_window: str = DEFAULT_WINDOW,
    stacks: bool = True,
    keep: str | None = None,
    keep_arguments: bool = False,
    store: Path | str | None = None,
    environment: Mapping[str, str] | None = None,
    reporter: Reporter = SILENT,
) -> "Run":
    """Run any command, unchanged, record all of its processes, and return the run; as
    `ioprof record -- COMMAND`.

        run = ioprof.record(["torchrun", "--nproc-per-node", "8", "train.py"], out="runs/first")
        print(run.summary.verdict.text, run.summary.throughput.samples_per_s)

    The command inherits standard input and output and the working directory. Its exit code is
    `run.trace.run.exit_code`; a command that fails is no error here.

    Args:
        command: the program and its arguments.
        out: the run folder to make (default: `runs/TIME`); each task of a job with several makes a
            part in `out`.parts.
        force: replace an earlier run in `out`.
        gpu_window: when GPUs are recorded: `2s/30s` is 2 s of every 30 s, or of more where windows
            would block the job for over 0.5 % of the time; `all`, or `off`.
        stacks: sample the Python stacks of ranks and their workers, from outside.
        keep: keep the spans of the last so long only, such as `10m`, and the sums of all
            (`run.trace.run.whole_job`); default: all.
        keep_arguments: store secrets in the arguments (`--token X`, signed URLs); default: they are
            stored as `***`.
        store: also add the run to the store in this folder, see `ioprof history`.
        environment: of the command (default: that of this process).
        reporter: where messages go (default: nowhere).

    Raises:
        CommandError: no such program, a bad option, or `out` cannot be made or would be
            overwritten; nothing was started. Once the run is made: `store` cannot be made.
        RunError: the run is made, and `store` is none or damaged.

    """
    from ioprof.errors import CommandError
    from ioprof.recording.command import default_run_folder, record_command
    from ioprof.store import refuse_file

    if isinstance(command, str | bytes):
        words = shlex.split(os.fsdecode(command))
        raise CommandError(f"{command!r} is one string; give the command as a list: {words}")
    if store is not None:
        refuse_file(Path(store))
    variables = _variables(environment)
    words, folder = (
        [os.fspath(word) for word in command],
        default_run_folder(variables) if out is None else Path(out),
    )
    run = record_command(
        words,
        folder,
        variables,
        force=force,
        gpu_window=gpu_window,
        stacks=stacks,
        keep=keep,
        keep_arguments=keep_arguments,
        reporter=reporter,
    )
    if store is not None and run.trace.run.part is None:
        from ioprof.store.runs import Store

        Store(Path(store), make=True).add(run)
    return _shown(run)


def snapshot(
    run: Path | str | int,
    *,
    out: Path | str | None = None,
    force: bool = False,
    reporter: Reporter = SILENT,
) -> "Run":
    """What is recorded so far of a job that goes on, as a run folder of its own; as
    `ioprof snapshot RUN`.

        ioprof.snapshot("runs/first", out="runs/first-noon").summary.verdict.text

    Of a recording with `keep` that is the last minutes, and the sums of all. `run` is its run
    folder, or the id of a process of the job; `out` is by default next to it, with the time in its
    name. `force` replaces an earlier run in `out`.

    Raises:
        CommandError: no recording goes on there, or `out` cannot be made or would be overwritten.

    """
    from ioprof.recording.snapshots import default_snapshot, snapshot
    from ioprof.watching.target import only_target

    target = only_target(str(run))
    folder = default_snapshot(target.out or target.spool) if out is None else Path(out)
    return _shown(snapshot(target.spool, folder, force, reporter))


def profile(out: Path | str, force: bool = False) -> AbstractContextManager[None]:
    """Record the block of a `with` statement in this process, and make the run folder `out` when
    the block ends.

        with ioprof.profile("runs/first"):
            train()

    Everything that hooks see is recorded, of this process and of workers that it forks in the
    block; reads are not, since they need a library that is loaded before a process starts
    (`ioprof.record`). Workers that were started before are seen from this side only, spawned
    workers not at all. What the block raises is raised, and the run says so. `force` replaces an
    earlier run.

    Raises:
        CommandError: before the block, `out` cannot be made or would be overwritten; after it, the
            run folder cannot be made (the message says where the capture files are, and how to make
            a run of them).
        CaptureError: this process is being recorded already.

    """
    from ioprof.recording.profiling import profile_block

    return profile_block(Path(out), sys.orig_argv, os.environ, force)


@dataclass(frozen=True, kw_only=True)
class _Run(RunOptions):
    command: Sequence[str] | None = None
    environment: Mapping[str, str] | None = None
    reporter: Reporter = SILENT


@takes_options(_Run)
def run(options: _Run) -> "Run":
    """Train with the built-in job, record it, and return the run; `ioprof run --help` explains
    every option.

        run = ioprof.run("data", device="emulated:h100", ranks=2, steps=50, cache="cold", out="runs/cold")

    A job that fails is no error (`run.trace.run.status`). Raises `CommandError` or `DatasetError`
    before it starts.
    """  # noqa: E501
    from ioprof.jobs.training_run import run_attempt

    return _shown(
        run_attempt(
            options,
            options.command or sys.orig_argv,
            _variables(options.environment),
            options.reporter,
        )
    )


@dataclass(frozen=True, kw_only=True)
class _Conversion(ConversionOptions):
    reporter: Reporter = SILENT


@takes_options(_Conversion)
def convert(options: _Conversion) -> "ConversionResult":
    """Make a dataset of ImageNet, or of any folder of class folders;
    `ioprof convert imagenet --help` explains every option.

        made = ioprof.convert("ILSVRC2012_img_train.tar", "data", layout="lmdb", image="rgb256")
        print(made.dataset.records, made.dataset.bytes, made.seconds)

    `size` is in pixels, `workers` in processes (default: one per core), `shard_bytes` in bytes,
    `limit` in images. A call that was interrupted, made again, resumes from where it was.

    Raises `CommandError` for options, places or images that cannot be used, and `DatasetError` for
    a damaged source.
    """
    from ioprof.converters import Part, engine_for, run_conversion

    only = Part.parse(options.part) if options.part else None
    engine = engine_for(options.engine, options.workers, options.scheduler)
    return run_conversion(
        Path(options.source), Path(options.destination), options.how, only, engine, options.reporter
    )


@dataclass(frozen=True, kw_only=True)
class _Probe(ProbeOptions):
    reporter: Reporter = SILENT


@takes_options(_Probe)
def probe(options: _Probe) -> "PathProbe":
    """Measure what a path delivers, cold: opening, sequential reads and random record reads, by 1
    to `clients` clients.

        found = ioprof.probe("/lustre/me/data", seconds=10)
        best = found.result.best("random")
        print(best.operations_per_s, best.bytes_per_s, best.latency.p99_s)

    Only reads, unless `scratch` is given (bytes of files to write in `path`, read, and remove). The
    files that are read are dropped from this machine's page cache.

    `ioprof probe --help` explains every option; sizes are texts such as `2G`, in powers of 1024,
    and `seconds` is the time of all levels together.

    Raises `CommandError` for options that do not fit together and files that cannot be opened,
    `DatasetError` for a dataset that is damaged.

    """
    from ioprof.jobs.probes.probing import plan_probe

    return plan_probe(options).run(options.reporter)


def compare(*runs: "Run | Trace | Path | str", store: Path | str | None = None) -> "Comparison":
    """Compare two runs or more, the first of them the baseline; as `ioprof compare`.

        comparison = ioprof.compare("runs/files", "runs/lmdb")
        print(comparison)           # the table
        comparison.speedups         # (1.0, 1.03): steady samples per second, divided by those of
                                    the first
        comparison.differences      # of each other run, by cause, with intervals from the steps
        comparison.slower_than(0.05)    # a sentence for each run that is more than 5 % slower than
                                        the first

    Each is a run folder, what `ioprof.load` gives, or what `ioprof.record` and `ioprof.run` give;
    or `baseline:NAME`, a run that was named in the store (see `ioprof history`).

    Raises:
        CommandError: fewer than two runs, or no such baseline.
        RunError: a folder is no run, or is damaged.

    """
    from ioprof.analysis.comparing import difference
    from ioprof.errors import CommandError
    from ioprof.report.texts.comparison import Comparison

    if len(runs) < 2:
        named = (
            f", or see one run with: ioprof report {runs[0]}"
            if runs and isinstance(runs[0], Path | str)
            else ""
        )
        raise CommandError(f"compare needs two runs or more; name another one{named}")
    first, *others = (_named_or_analysed(each, store) for each in runs)
    summaries = (first.summary, *(run.summary for run in others))
    return Comparison(summaries, tuple(difference(first, run) for run in others), (first, *others))


def whatif(
    run: "Run | Trace | Path | str",
    *others: "Run | Trace | Path | str",
    workers: int | None = None,
    prefetch: int | None = None,
    persistent_workers: bool = False,
    batch: int | None = None,
    cores: float | None = None,
    ranks: int | None = None,
    cache: str | None = None,
    layout: str | None = None,
    image: str | None = None,
    like: "Run | Path | str | None" = None,
    device: str | None = None,
    copy: str | None = None,
    **speeds: float | str | None,
) -> "Prediction":
    """Predict what a change of a recorded run would bring, by replaying its pipeline; as
    `ioprof whatif`.

        found = ioprof.whatif("runs/first", workers=8, storage="2x")
        found.speedup, found.speedup_range, found.baseline_error  # 1.62, 1.55 to 1.70; without
                                                                  change: 0.012 too slow

    Args:
        run: a run folder, what `ioprof.load` gives, or what `ioprof.record` and `ioprof.run` give.
        others: further recordings of the same job, whose differences the range has; the middle
            prediction counts.
        workers: loader workers per rank; 0: the rank loads its batches itself.
        prefetch: batches per worker that are prepared ahead.
        persistent_workers: keep workers from epoch to epoch.
        batch: samples per batch and rank.
        cores: CPU cores per host that the job may use.
        ranks: ranks, on the hosts of the recorded ones.
        cache: page cache, `warm` (holds all data) or `cold` (holds nothing).
        layout: layout of the dataset, which the run `like` read.
        image: form of its images, `original` or `rgb256`, which the run `like` read.
        like: another run, such as a short one of a converted sample: batches cost what they cost
            there.
        device: another emulated device, as `emulated:h100`.
        copy: how batches get to the device: `overlapped`, `pinned` or `pageable`.
        speeds: by how many times a cause becomes faster: `storage="2x"`, `decode=1.5`,
            `transform="none"` (at no cost); also `collate`, `compute`, `exchange`, and others of
            `ioprof.model.changes.SPEEDS`.

    Raises:
        CommandError: a change that cannot be, or of which the run does not show the costs.
        RunError: a folder is no run, is damaged, or cannot be replayed; the message says why.

    """
    from ioprof.format.trace import Trace
    from ioprof.model.recordings import predicted
    from ioprof.report.explore import Run
    from ioprof.report.texts.catalogue.answer import prediction_in_words

    recordings = [
        each if isinstance(each, Run) else Run(each) if isinstance(each, Trace) else Run.load(each)
        for each in (run, *others)
    ]

    def asked(recording: Run) -> "Prediction":
        return recording.whatif(
            workers=workers,
            prefetch=prefetch,
            persistent_workers=persistent_workers,
            batch=batch,
            cores=cores,
            ranks=ranks,
            cache=cache,
            layout=layout,
            image=image,
            like=like,
            device=device,
            copy=copy,
            **speeds,
        )

    return prediction_in_words(predicted(recordings, asked))


def extrapolate(run: "Run | Trace | Path | str", **asked: Any) -> "EpochPrediction":
    """Predict how long a whole training takes, from a recording of a part of it; as
    `ioprof extrapolate`.

        found = ioprof.extrapolate("runs/first", epochs=90, records=1281167)
        found.seconds, found.low_s, found.high_s, found.record_next

    Args:
        run: a run folder, what `ioprof.load` gives, or what `ioprof.record` and `ioprof.run` give.
        asked: the options of the command, see `ioprof.model.extrapolation.asked.Extrapolated`.

    Raises:
        CommandError: the recording does not say it; the message says what to record.
        RunError: a folder is no run, or is damaged.

    """
    from ioprof.model.extrapolation.asked import Extrapolated
    from ioprof.model.extrapolation.whole import extrapolate

    return extrapolate(_analysed(run), given_options(Extrapolated, asked))


def simulate(
    system: Path | str,
    job: Path | str = "resnet50",
    *,
    ranks: int = 1,
    **asked: Any,
) -> "Simulation":
    """Predict what a job does on a system that need not be at hand; as `ioprof simulate`.

        found = ioprof.simulate("tsubame3", "resnet50", ranks=128, layout="lmdb", epochs=90)
        found.total_s.value, found.total_s.low, found.total_s.high, found.later.bound_by

    Args:
        system: a name of `ioprof simulate list`, a file NAME.toml, or a run folder, for its host.
        job: a model or workload of `ioprof simulate SYSTEM --job list`, or a run folder.
        ranks: accelerators of all nodes together.
        asked: the other options of the command, see
            `ioprof.model.simulator.asked.SimulationAsked`.

    Raises:
        CommandError: something that is not known, or that the system does not have.
        RunError: a folder is no run, is damaged, or says too little.

    """
    from ioprof.model.simulator.asked import SimulationAsked, simulation

    return simulation(system, job, given_options(SimulationAsked, {"ranks": ranks, **asked}))


def size(
    model: str = "resnet50",
    *,
    ranks: int = 1,
    like: "Run | Path | str | None" = None,
    **asked: Any,
) -> "Size":
    """Say what a job needs so that no accelerator ever waits; as `ioprof size`.

        found = ioprof.size("resnet50", device="h100", ranks=1024, dataset="2x")
        [(need.layout, need.bytes_per_s.value, need.cores.value) for need in found.needs]

    Args:
        model: a model of `ioprof run`, on images, or a workload of `ioprof simulate --job`.
        ranks: accelerators of all nodes together.
        like: a run, for the job that it recorded.
        asked: the other options of the command, see `ioprof.model.simulator.asked.SizeAsked`.

    Raises:
        CommandError: something that is not known.
        RunError: a folder is no run, is damaged, or says too little.

    """
    from ioprof.model.simulator.asked import SizeAsked
    from ioprof.model.simulator.sizing import asked_size

    trace = None if like is None else _analysed(like).trace
    return asked_size(model, given_options(SizeAsked, {"ranks": ranks, **asked}), trace)


def prove(
    run: "Run | Path | str",
    *,
    advice: int = 1,
    pairs: int = 3,
    out: Path | str | None = None,
    force: bool = False,
    command: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    reporter: Reporter = SILENT,
) -> "Proof":
    """Make a change that the report of a run advises, and measure what it brings; as
    `ioprof prove`.

        found = ioprof.prove("runs/first", advice=1)
        found.predicted, found.measured, found.measured_range

    The job runs `pairs` times without the change and as often with it, in turn, each run like the
    recorded one. A script that was recorded runs in the current folder; arguments of the DataLoader
    that it trains from are changed as it makes it, in no file.

    Args:
        run: a run folder, or what `ioprof.run` and `ioprof.record` give.
        advice: its number in the report of the run, from 1 on.
        pairs: one run without the change and one with it, each.
        out: folder for the runs (default: beside the run, its name and `-proof`).
        force: replace runs that are there already.
        command: of a recorded script, instead of the recorded command.
        environment: of the jobs (default: that of this process).
        reporter: where messages and progress go (default: nowhere).

    Raises:
        CommandError: no such advice, one that ioprof cannot carry out, a script whose training
            loader cannot be told from its others, or `out` cannot be made; before anything is run.
            Later, if a run fails, or the change had no effect.
        RunError: a folder is no run, or is damaged.

    """
    from ioprof.errors import CommandError
    from ioprof.jobs.proving import prove_advice

    first = _analysed(run)
    if first.folder is None and out is None:
        raise CommandError("prove: the run has no folder; name one for the new runs: out=FOLDER")
    folder = Path(out) if out is not None else Path(f"{Path(first.folder or '').resolve()}-proof")
    own = _variables(environment)
    return prove_advice(first, advice, pairs, folder, force, own, reporter, command)


def _named_or_analysed(
    run: "Run | AnalysedRun | Trace | Path | str", store: Path | str | None
) -> "AnalysedRun":
    """The same as `_analysed`, also for a baseline of the store."""
    from ioprof.errors import CommandError
    from ioprof.store.runs import BASELINE, Store

    if not isinstance(run, Path | str) or not str(run).startswith(BASELINE):
        return _analysed(run)
    if store is None:
        raise CommandError(f"{run}: name the folder of its store: --store DIR")
    return Store(Path(store)).baseline(str(run).removeprefix(BASELINE))


def _variables(given: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if given is None else given


def _shown(run: "AnalysedRun") -> "Run":
    """What a notebook shows of a run."""
    from ioprof.report.explore import Run

    return Run.of(run)


def _analysed(run: "Run | AnalysedRun | Trace | Path | str") -> "AnalysedRun":
    """The analysis of what was given as a run."""
    from ioprof.format.trace import Trace
    from ioprof.report.explore import Run
    from ioprof.report.run import Run as AnalysedRun

    if isinstance(run, Run):
        return run.analysed
    if isinstance(run, Trace):
        return AnalysedRun.of(run)
    return run if isinstance(run, AnalysedRun) else AnalysedRun.load(run)


@dataclass(frozen=True, kw_only=True)
class _Study(StudyOptions):  # type: ignore[misc]  # as there
    environment: Mapping[str, str] | None = None
    reporter: Reporter = SILENT


@takes_options(_Study)
def study(options: _Study) -> "Study | Grid":
    """Make a study, as `ioprof study`: a published one again, by the job of a preset once for each
    value of the setting that it varies; or one over several settings, by runs or simulations.

        found = ioprof.study("rannc-mlp", steps=50)
        [(row.value, row.speedup, row.iteration.straggler_s) for row in found.rows]
        ioprof.study("tsubame-scaling").cell("ring", "staged to the nodes, verbs", "128").value

    `values` replaces those of a preset; the other options are those of `ioprof.run`. `out`
    (default: `study-PRESET`) gets a folder for each run, `study.json` and `study.html`; one over
    several settings also `study.ipynb`, and what is in it already is not made again. Raises
    `CommandError` and `DatasetError`, the former also if a job fails.
    """
    from ioprof.jobs.studies.grid_file import load_grid

    environment = _variables(options.environment)
    folder = Path(options.out or f"study-{Path(options.preset).stem}")
    grid = load_grid(options.preset)
    if grid is not None:
        from ioprof.jobs.studies.cells import make_grid
        from ioprof.report.grid import write_grid

        made = make_grid(grid, options, environment, options.reporter)
        write_grid(made, folder)
        return made
    from ioprof.jobs.studying import make_study
    from ioprof.report.study import write_study

    found = make_study(options, folder, environment, options.reporter)
    write_study(found, folder)
    return found
