"""Random jobs with faults of known kinds: whether the first advice of a report is the best change.

    python benchmarks/random_jobs.py [--seed 1] [--count 3] [--table FILE] [--truth DIR]

Each seed makes a job from a grammar: a loop, its settings, and one to three faults of random sizes
out of `FAULTS` (`random_job.py` has what they do). The job is recorded once. Without ioprof it is
run with each fault removed, with each setting changed, and with what the first advice says: what
these bring is the truth: the median of `--repeats` pairs of the job as it is and with the change,
one after the other, by the time from the first batch that is asked for to the end of the last
epoch. A run of each alone is no measure where the speed of a machine changes by a quarter.

With `--truth` what a change brings is kept in that folder, and measured once: so a change of ioprof
is judged by recording each job again.

The first advice is right if it brings at least 0.9 of what the best single change brings, or if
there is none and no change brings 5 %. An interval is right if the truth lies within.
"""

import argparse
import ast
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faults.agreement import contradictions  # noqa: E402

from ioprof.format.run_record import Finding, JobChange  # noqa: E402
from ioprof.model.summary import with_gains  # noqa: E402
from ioprof.report.run import Run  # noqa: E402

JOB: Final = Path(__file__).with_name("random_job.py")
LOCKS: Final = ("process_lock", "thread_lock", "file_lock")
ONE_AT_A_TIME: Final = (*LOCKS, "one_shard", "sampler")
"""Faults of a sample that workers do not share."""
LOOPS: Final = ("loader", "iterable", "thread_pool", "executor", "process_pool", "asyncio", "plain")
OF_PROCESSES: Final = ("loader", "iterable", "process_pool")
ENOUGH: Final = 0.9
"""Part of the best change's gain that the first advice has to bring."""
MEMORY: Final = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_MAX_": "0"}
"""What the finding `keep_memory` says (man mallopt)."""
_KEEP_MEMORY: Final = 0.8
"""Part of the jobs."""
_WHOLE: Final = ("validate_less", "checkpoint_less")
"""Findings of all that their cause takes."""
LITTLE: Final = 1.05
"""Where no change brings more, no advice is needed."""


class Fault(NamedTuple):
    """What costs time in a job."""

    unit: str
    """What it costs time: a `sample`, a `batch`, a `step`, an `epoch`, or the `job`."""
    causes: tuple[str, ...]
    """Causes of ioprof that it may be charged to."""
    functions: tuple[str, ...] = ()
    """Functions of the job in which it is, by which an advice names it."""
    loops: tuple[str, ...] = LOOPS


_MAKING: Final = ("decode", "transform", "loader", "collate", "delivery", "storage", "page_cache")
FAULTS: Final = {
    "sleep": Fault("sample", _MAKING, ("cost_of_sample",)),
    "cpu": Fault("sample", _MAKING, ("multiply",)),
    "python": Fault("sample", _MAKING, ("spin",)),
    "memory": Fault("sample", _MAKING, ("copy_memory",)),
    "reads": Fault("sample", _MAKING, ("read_file",)),
    "server": Fault("sample", _MAKING, ("slow_request",)),
    "stalls": Fault("sample", _MAKING, ("slow_request",)),
    "process_lock": Fault("sample", _MAKING, ("holding",), OF_PROCESSES),
    "thread_lock": Fault("sample", _MAKING, ("holding",), ("thread_pool", "executor", "asyncio")),
    "file_lock": Fault("sample", _MAKING, ("with_file_lock",)),
    "cache": Fault("sample", _MAKING, ("cost_of_sample",)),
    "dying_cache": Fault("sample", _MAKING, ("cost_of_sample",), ("loader", "iterable")),
    "rare": Fault("sample", _MAKING, ("cost_of_sample",)),
    "one_worker": Fault("sample", _MAKING, ("cost_of_sample",), ("loader", "iterable")),
    "growth": Fault("sample", _MAKING, ("cost_of_sample",)),
    "two_phases": Fault("sample", _MAKING, ("cost_of_sample",)),
    "many_threads": Fault("sample", _MAKING, ("cost_of_sample",), ("loader", "iterable")),
    "one_shard": Fault("sample", _MAKING, ("_slow",), ("iterable",)),
    "sampler": Fault("sample", (*_MAKING, "host"), ("spin", "__iter__"), ("loader",)),
    "collate": Fault("batch", _MAKING, ("spin", "collate")),
    "metric": Fault("step", ("host",), ("spin", "cost_of_step")),
    "logging": Fault("step", ("host", "storage"), ("cost_of_step",)),
    "gc": Fault("step", ("gc", "host"), ("cost_of_step",)),
    "copies": Fault("step", ("host", "h2d"), ("copy_memory", "cost_of_step")),
    "map": Fault("step", ("host", "page_cache", "storage"), ("cost_of_step",)),
    "slow_rank": Fault("step", ("straggler", "host", "exchange"), ("spin", "cost_of_step")),
    "discarded": Fault("step", _MAKING),
    "validation": Fault("epoch", ("validation",), ("end_epoch",)),
    "checkpoint": Fault("epoch", ("checkpoint",), ("save", "end_epoch")),
    "start_up": Fault("job", ("start_up",), ("spin", "prepare")),
}


@dataclass(frozen=True)
class Spec:
    """A job, as `random_job.py` takes it."""

    loop: str
    workers: int
    prefetch: int
    persistent: bool
    ranks: int
    epochs: int
    batch: int
    samples: int
    compute_rows: int
    faults: dict[str, float]
    """Milliseconds by the name of a fault."""
    keeps_memory: bool = True
    """Whether glibc keeps freed memory. Else what lies on the heap decides how fast a step is: two
    runs of the same job differ."""
    is_fast: bool = False
    """Whether a step computes half as much."""

    def but(self, **changes: Any) -> "Spec":
        """Another one."""
        return Spec(**{**asdict(self), **changes})

    def without(self, *names: str) -> "Spec":
        """The job without these faults."""
        kept = {name: size for name, size in self.faults.items() if name not in names}
        return self.but(faults=kept)

    @property
    def text(self) -> str:
        """The job in a few words."""
        faults = ", ".join(f"{name} {size:.3g} ms" for name, size in self.faults.items())
        more = f", {self.ranks} ranks" if self.ranks > 1 else ""
        more += "" if self.keeps_memory else ", memory given back"
        kept = ", persistent" if self.persistent else ""
        return f"{self.loop}, {self.workers} workers{kept}{more}, {self.epochs} epochs: {faults}"


def spec_of(seed: int, rows_per_ms: float) -> Spec:
    """The job of a seed, on a machine that computes so many rows in a millisecond."""
    draw = random.Random(f"ioprof {seed}")
    loop = draw.choices(LOOPS, (8, 4, 2, 2, 2, 2, 2))[0]
    workers = 0 if loop == "plain" else draw.choice((0, 1, 2, 2, 3, 4))
    workers = max(workers, 1) if loop not in ("loader", "iterable", "plain") else workers
    ranks = 2 if loop in ("loader", "plain") and workers < 2 and draw.random() < 0.4 else 1
    epochs, batch, step_ms = draw.choice((1, 2, 3)), draw.choice((4, 8)), draw.uniform(4, 16)
    persistent = workers > 0 and draw.random() < 0.5
    usable = [name for name, fault in FAULTS.items() if loop in fault.loops]
    usable = [name for name in usable if (name != "slow_rank") or ranks > 1]
    usable = [name for name in usable if name != "one_worker" or workers > 1]
    usable = [name for name in usable if name != "dying_cache" or epochs > 1]
    usable = [name for name in usable if name != "cache" or persistent or not workers]
    names = draw.sample(usable, draw.choice((1, 1, 2, 3)))
    if "dying_cache" in names:
        persistent = False
    steps = max(30, int(2500 / step_ms / epochs))
    faults, makers = {}, max(1, min(workers, 4))
    for name in names:
        times = 2 ** draw.uniform(-1.5, 1.5)
        unit = FAULTS[name].unit
        size = {
            "sample": times * step_ms * (1 if name in ONE_AT_A_TIME else makers) / batch,
            "batch": times * step_ms * max(1, min(workers, 2)),
            "step": times * step_ms,
            "epoch": times * step_ms * steps / 3,
            "job": times * 1000,
        }[unit]
        faults[name] = round(min(size, 60.0 if unit in ("sample", "step") else 4000.0), 4)
    prefetch, keeps_memory = draw.choice((1, 2, 4)), draw.random() < _KEEP_MEMORY
    return Spec(
        loop=loop,
        workers=workers,
        prefetch=prefetch,
        persistent=persistent,
        ranks=ranks,
        epochs=epochs,
        batch=batch,
        samples=steps * batch,
        compute_rows=max(64, int(step_ms * rows_per_ms)),
        faults=faults,
        keeps_memory=keeps_memory,
    )


def changes(spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Each single change by what it is: a fault removed, or a setting."""
    for name in spec.faults:
        yield f"no {name}", spec.without(name)
    yield "device 2x", spec.but(is_fast=True)
    if not spec.keeps_memory:
        yield "keeps memory", spec.but(keeps_memory=True)
    if spec.loop != "plain":
        least = 0 if spec.loop in ("loader", "iterable") else 1
        for workers in {least, 1, 2, 4, 6} - {spec.workers}:
            yield f"workers {workers}", spec.but(workers=workers)
    if spec.loop in ("loader", "iterable") and spec.workers:
        yield f"prefetch {spec.prefetch * 4}", spec.but(prefetch=spec.prefetch * 4)
        if spec.epochs > 1 and not spec.persistent:
            yield "persistent", spec.but(persistent=True)


# ------------------------------------------------------------------------------------- running jobs


class Machine:
    """Runs jobs, each in a folder of its own."""

    def __init__(self, folder: Path, repeats: int) -> None:
        self._folder, self._repeats = folder, repeats
        self._number = 0

    def command(self, spec: Spec) -> list[str]:
        """What runs a job."""
        self._number += 1
        place = self._folder / str(self._number)
        place.mkdir(parents=True)
        (place / "spec.json").write_text(json.dumps(asdict(spec)))
        ranks = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
        launcher = ["-m", *ranks, str(spec.ranks)] if spec.ranks > 1 else []
        return [sys.executable, *launcher, str(JOB), str(place / "spec.json"), str(place)]

    def gain(self, spec: Spec, changed: Spec) -> float:
        """How many times as fast the changed job is: the median of pairs, in turn."""
        found = []
        for pair in range(self._repeats):
            order = (changed, spec) if pair % 2 else (spec, changed)
            took_s = {id(each): self.took_s(each) for each in order}
            found.append(took_s[id(spec)] / took_s[id(changed)])
        return statistics.median(found)

    def took_s(self, spec: Spec) -> float:
        """Seconds for each step of a run without ioprof."""
        ended = subprocess.run(
            self.command(spec),
            env=environment(spec),
            capture_output=True,
            text=True,
            timeout=600,
        )
        if ended.returncode:
            raise RuntimeError(f"{spec.text}: {ended.stderr[-2000:]}")
        return max(each["seconds"] / each["steps"] for each in lines(ended.stdout))

    def record(self, spec: Spec, out: Path) -> Run:
        """The run of the job under ioprof."""
        words = [sys.executable, "-m", "ioprof", "record", "--quiet", "--force", "--out", str(out)]
        words.append("--")
        ended = subprocess.run(
            [*words, *self.command(spec)], env=environment(spec), capture_output=True, text=True
        )
        if ended.returncode:
            raise RuntimeError(f"{spec.text}: {ended.stderr[-2000:]}")
        return with_gains(Run.load(out))


def environment(spec: Spec) -> dict[str, str]:
    """Of a job's processes."""
    return {**os.environ, **(MEMORY if spec.keeps_memory else {})}


def lines(text: str) -> list[dict[str, Any]]:
    """What each rank printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def rows_per_ms(machine: Machine) -> float:
    """How many rows a step of the job computes in a millisecond, beyond what any step takes."""
    small, large = (
        Spec("plain", 0, 1, False, 1, 1, 4, 400, rows, {}) for rows in (1024, 4096)
    )  # fmt: skip
    took = [machine.took_s(each) * 1e3 for each in (small, large)]
    return 3072 / (took[1] - took[0])


# ------------------------------------------------------------------------------------------ scoring


def lines_of_functions() -> dict[str, range]:
    """The lines of each function of the job."""
    tree = ast.parse(JOB.read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {node.name: range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in found}


def advised(spec: Spec, advice: Finding) -> Spec | None:
    """The job with what an advice says; None: it names nothing that the job has."""
    change = advice.change or JobChange()
    settings: dict[str, Any] = {}
    if change.workers is not None:
        settings["workers"] = change.workers
    if change.prefetch is not None:
        settings["prefetch"] = change.prefetch
    if change.persistent_workers:
        settings["persistent"] = True
    if settings:
        return spec.but(**settings)
    if advice.code == "keep_memory":
        return spec.but(keeps_memory=True)
    if advice.code == "own_lock":  # they do at the same time what they did while they held it
        held = {name: spec.faults[name] for name in LOCKS if name in spec.faults}
        kept = {name: size for name, size in spec.faults.items() if name not in held}
        at_once = {"sleep": kept.get("sleep", 0.0) + sum(held.values())}
        return spec.but(faults={**kept, **at_once}) if held else None
    causes = set(change.speeds) | ({advice.cause} if advice.cause else set())
    if change.speeds.get("compute"):
        return spec.but(is_fast=True)
    places = lines_of_functions()
    named = [
        name
        for name in spec.faults
        if name != "start_up"  # which is before the first batch
        and any(
            place in advice.action
            for function in FAULTS[name].functions
            for place in (
                f"{JOB.name} in {function}",
                *(f"{JOB.name}:{line}" for line in places[function]),
            )
        )
    ]
    if advice.code in _WHOLE:
        named = []  # whatever it names in it
    if advice.code == "discard":
        named = [name for name in spec.faults if name == "discarded"]
    chosen = named or [name for name in spec.faults if causes & set(FAULTS[name].causes)]
    return spec.without(*chosen) if chosen else None


@dataclass
class Outcome:
    """What a report said of a job, and what is true."""

    seed: int
    job: str
    bound_by: str | None = None
    first: str = ""
    """The first advice."""
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    true: float | None = None
    """What the first advice brings."""
    best: str = ""
    best_gain: float = 1.0
    contradictions: list[str] = field(default_factory=list)
    gains: dict[str, float] = field(default_factory=dict)
    """What each change brings."""

    @property
    def is_right(self) -> bool:
        """Whether the first advice is as good as the best change."""
        return (self.true or 1.0) >= ENOUGH * self.best_gain

    @property
    def is_refused(self) -> bool:
        """There is something to gain, and no advice with a number."""
        return self.predicted is None and self.best_gain >= LITTLE

    @property
    def is_within(self) -> bool | None:
        """Whether the truth lies in the interval. None: there is none."""
        if self.low is None or self.high is None or self.true is None:
            return None
        return self.low <= self.true <= self.high

    @property
    def is_harmful(self) -> bool:
        """It promises a gain, and makes the job slower."""
        return (self.predicted or 1.0) > LITTLE and self.true is not None and self.true < 1.0

    @property
    def row(self) -> str:
        """As a line of the table."""
        marks = "right" if self.is_right else "**wrong**"
        marks += {True: "", False: ", **outside**", None: ""}[self.is_within]
        marks += ", refused" * self.is_refused + ", **harmful**" * self.is_harmful
        said = f"{self.predicted:.2f}" if self.predicted is not None else "–"
        interval = f" ({self.low:.2f} to {self.high:.2f})" if self.low and self.high else ""
        true = f"{self.true:.2f}" if self.true is not None else "–"
        first = self.first[:90].replace("|", "/")
        cells = (str(self.seed), self.job, first, said + interval, true)
        best = f"{self.best}: {self.best_gain:.2f}"
        return f"| {' | '.join((*cells, best, marks, str(len(self.contradictions))))} |"


class Truth:
    """What changes of one job bring, measured when it is asked for."""

    def __init__(self, machine: Machine, spec: Spec, kept: Path | None) -> None:
        self._machine, self._spec, self._kept = machine, spec, kept
        self._gains: dict[str, float] = {}
        if kept is not None and kept.exists():
            self._gains = json.loads(kept.read_text())["gains"]

    def gain(self, changed: Spec) -> float:
        """How many times as fast the job is with a change."""
        key = json.dumps(asdict(changed), sort_keys=True)
        if key not in self._gains:
            self._gains[key] = self._machine.gain(self._spec, changed)
            if self._kept is not None:
                known = {"spec": asdict(self._spec), "gains": self._gains}
                self._kept.write_text(json.dumps(known, indent=1))
        return self._gains[key]


def judged(machine: Machine, seed: int, spec: Spec, out: Path, truth: Truth) -> Outcome:
    """Record a job, and find out what each change brings."""
    run = machine.record(spec, out)
    verdict = run.summary.verdict
    found = Outcome(seed, spec.text, verdict.bound_by, contradictions=contradictions(run))
    for name, changed in changes(spec):
        if name != "no start_up":  # which is before the first batch
            found.gains[name] = truth.gain(changed)
    found.best, found.best_gain = max(found.gains.items(), key=lambda each: each[1])
    first = next(iter(verdict.findings), None)
    if first is not None:
        found.first, found.predicted = first.action, first.gain
        found.low, found.high = first.low, first.high
        if (changed := advised(spec, first)) is not None:
            found.true = truth.gain(changed)
    return found


def spec_of_truth(path: Path | None) -> Spec | None:
    """The job of which a file has the truth."""
    if path is None or not path.exists():
        return None
    return Spec(**json.loads(path.read_text())["spec"])


def summary_of(found: Sequence[Outcome]) -> str:
    """The score of all jobs."""
    within = [each.is_within for each in found if each.is_within is not None]
    widths = [each.high - each.low for each in found if each.low and each.high]
    width = f"{statistics.median(widths) / 2:.2f}" if widths else "–"
    return (
        f"{len(found)} jobs: the first advice is as good as the best change in"
        f" {sum(each.is_right for each in found)}; the truth is in its interval in {sum(within)} of"
        f" {len(within)} (half of the median width: {width}); refused"
        f" {sum(each.is_refused for each in found)}, harmful"
        f" {sum(each.is_harmful for each in found)}, contradictions"
        f" {sum(len(each.contradictions) for each in found)}."
    )


HEAD: Final = (
    "| seed | job | first advice | predicted | true | best change | judged | contradictions |\n"
    + "| --- " * 8
    + "|"
)


def table_of(found: Sequence[Outcome]) -> str:
    """All jobs, in Markdown."""
    rows = [each.row for each in found]
    return "\n".join(["# Random jobs", "", summary_of(found), "", HEAD, *rows, ""])


def main() -> int:
    """Run the jobs of some seeds, and print what their reports say and what is true."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first job")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each change")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="keep the run folders there")
    parser.add_argument("--truth", type=Path, help="keep what changes bring there")
    options = parser.parse_args()
    found: list[Outcome] = []
    if options.truth:
        options.truth.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ioprof-random-") as folder:
        machine = Machine(Path(folder), options.repeats)
        rate = functools.cache(rows_per_ms)
        for seed in range(options.seed, options.seed + options.count):
            out = Path(options.keep or folder, f"run-{seed}").resolve()
            kept = options.truth and options.truth / f"{seed}.json"
            spec = spec_of_truth(kept) or spec_of(seed, rate(machine))
            found.append(judged(machine, seed, spec, out, Truth(machine, spec, kept)))
            print(found[-1].row, flush=True)
            if options.table:
                options.table.write_text(table_of(found))
            if options.json:
                options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    print(summary_of(found))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
