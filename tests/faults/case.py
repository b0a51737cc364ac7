"""A job with a known fault, and what its report must say."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import control_groups
import pytest
import slow_storage
from fuse_server import fuse_server
from repository import PROGRAMS

from faults.agreement import contradictions, printed
from ioprof.analysis.answer.details import PLACES
from ioprof.format.run_record import Doubt
from ioprof.instrument import faults
from ioprof.model.summary import with_gains
from ioprof.report.run import Run
from ioprof.report.texts.text import summary_text

HEAD_LINES: Final = 5
"""Lines of the report within which the cause must be named."""
_MOST_OFF: Final = 0.3
"""Difference of a rate to that of the program's stopwatch, which counts the start of the workers,
too."""


@dataclass(frozen=True)
class Case:
    """A program, where its data is, and what the report must say.

    `{data}` in its arguments is the folder of the data, `{fast}` that of the same data where it is
    not slow.
    """

    name: str
    program: str = ""
    """In tests/programs/."""
    arguments: tuple[object, ...] = ()
    before: tuple[object, ...] = ()
    """A command that starts the program, such as ("taskset", "-c", "0")."""
    launcher: tuple[object, ...] = ()
    """What runs the program instead of Python; `{python}` is the interpreter."""
    bound_by: str | None = None
    """`verdict.bound_by`; None: not checked."""
    says: tuple[str, ...] = ()
    """What the first three lines of the report contain."""
    advises: str = ""
    """What the first advice contains."""
    disk_bytes_per_s: int = 0
    """The data is cold, on a disk with this rate; 0: where the test's other files are."""
    read_ms: float = 0
    """The data is cold, on a file system with this latency of a read."""
    needs: tuple[str, ...] = ()
    """Libraries without which the case is skipped."""
    environment: tuple[tuple[str, str], ...] = ()
    never_says: tuple[str, ...] = ()
    """What the first three lines of the report do not contain."""
    quota_cores: float = 0
    """The job is in a control group that may use so many cores; 0: it is not."""
    num_cores: int = 1
    """Cores without which the case is skipped."""
    prepares: bool = False
    """The program brings the images into another format first, when its arguments are "prepare",
    the images and a new folder."""
    make: tuple[object, ...] = ()
    """A program of tests/programs/ that makes the data of the case in the folder that it gets as
    its first argument, and its other arguments; none: the images."""
    names: tuple[str, ...] = ()
    """What the whole report contains."""
    never_names: tuple[str, ...] = ()
    """What it does not contain."""
    unsettled: str = ""
    """Why the report of this case is not right in every run yet; empty: it is. The tests leave such
    a case out."""
    like: str = ""
    """The case that shows the same claim of the report in less time; empty: none. The tests leave
    such a case out."""
    most_unexplained: float = 0.05
    """Share of the steps' time that may be `host` or `loader` without a name, where lines of code
    name less than 90 % of these."""
    phase: str | None = None
    """`verdict.phase`: a part of the job besides its steps that the verdict must begin with; None:
    not checked."""
    files: tuple[tuple[str, int | Path], ...] = ()
    """Further files on the slow disk: their names in the data, and their sizes, or what they are
    copies of."""
    needs_faults: bool = False
    """The case is skipped where page faults cannot be recorded."""
    options: tuple[object, ...] = ()
    """Of `ioprof run`, which is the job then; there is no program."""
    unsure: Doubt | None = None
    """The verdict may be another one if it is unsure for this reason."""
    prints_rate: bool = False
    """The program prints samples, batches and seconds, and the report's rate of all steps must be
    near that."""


@dataclass(frozen=True)
class Outcome:
    """What a case led to."""

    run: Run
    head: str
    """The first lines of the report."""
    advice: str
    """The first advice, before advice is ranked by gain: on a busy machine nothing is predicted."""
    output: str
    """What the program printed."""
    report: str = ""
    """The whole report, on one line."""

    @property
    def unexplained(self) -> float:
        """Share of the steps' time in `host` and `loader` without a detail, of which lines of code
        do not name 90 %."""
        summary, found = self.run.summary, 0.0
        for entry in summary.steps.causes:
            if entry.cause not in ("host", "loader") or not entry.share:
                continue
            rest = max(
                0.0,
                entry.share
                - sum(detail.share for detail in entry.details if detail.code not in PLACES),
            )
            if entry.cause == "loader" and any(
                line.cause == "workers" for line in summary.unexplained
            ):
                continue  # all that workers do is named
            by_lines = sum(
                line.seconds for line in summary.unexplained if line.cause == entry.cause
            )
            if by_lines < 0.9 * rest / entry.share * (entry.seconds or 0.0):
                found += rest
        return found

    def faults_of(self, case: Case) -> list[str]:
        """What the report of a case says otherwise than it must; empty: it is right."""
        verdict = self.run.summary.verdict
        if case.unsure is not None and case.unsure in verdict.doubts:
            return contradictions(self.run)
        head = " ".join(self.head.lower().split())  # a line may be broken within the words
        wrong = [
            f"lacks {words!r}: {self.head}" for words in case.says if words.lower() not in head
        ]
        wrong += [
            f"says {words!r}: {self.head}" for words in case.never_says if words.lower() in head
        ]
        wrong += [
            f"lacks {words!r} in the report" for words in case.names if words not in self.report
        ]
        wrong += [
            f"has {words!r} in the report" for words in case.never_names if words in self.report
        ]
        if case.bound_by is not None and verdict.bound_by != case.bound_by:
            wrong.append(f"bound by {verdict.bound_by} ({verdict.text}), not {case.bound_by}")
        if case.phase is not None and verdict.phase != case.phase:
            wrong.append(f"the part of the job is {verdict.phase}, not {case.phase}")
        if not self.advice or case.advises.lower() not in self.advice.lower():
            wrong.append(f"advises: {self.advice}, without {case.advises!r}")
        if self.unexplained > case.most_unexplained:
            wrong.append(f"{self.unexplained:.1%} is not explained")
        return [*wrong, *contradictions(self.run), *self._wrong_rate(case)]

    def _wrong_rate(self, case: Case) -> list[str]:
        """Of all steps, against the program's own stopwatch, which includes the start of the
        workers."""
        if not case.prints_rate:
            return []
        samples, _, seconds = map(float, self.output.split())
        rate = self.run.summary.throughput.samples_per_s
        if rate is None or abs(rate * seconds / samples - 1) > _MOST_OFF:
            return [f"samples per second: {rate}, not {samples / seconds:.1f}"]
        return []


def skip_without(case: Case) -> None:
    """Skip the test where a library of the case is missing."""
    for name in case.needs:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{case.name} needs {name}")
    if case.needs_faults and (refusal := faults.refusal()):
        pytest.skip(f"{case.name} needs page faults: {refusal}")
    if len(os.sched_getaffinity(0)) < case.num_cores:
        pytest.skip(f"{case.name} needs {case.num_cores} cores")
    if case.quota_cores and (why := control_groups.missing("cpu")):
        pytest.skip(why)


@contextmanager
def prepared_data(case: Case, data: Path, folder: Path) -> Iterator[tuple[Path, object]]:
    """The folder of the data as the case wants it, and what its process calls before it starts."""
    if case.disk_bytes_per_s:
        with slow_storage.throttled_disk(folder) as disk:
            subprocess.run(["cp", "-r", str(data), str(disk.path)], check=True)
            for name, content in case.files:
                if isinstance(content, Path):
                    shutil.copyfile(content, disk.path / data.name / name)
                else:
                    (disk.path / data.name / name).write_bytes(os.urandom(content))
            slow_storage.evict(disk.path)
            disk.throttle(case.disk_bytes_per_s)
            yield disk.path / data.name, disk.join
    elif case.quota_cores:
        with control_groups.control_group("cpu") as group:
            control_groups.limit_cpu(group, case.quota_cores)
            yield data, group.join
    elif case.read_ms:
        slow_storage.evict(data)
        # in each epoch again
        with fuse_server(data, read_ms=case.read_ms, keep_cache=False) as mounted:
            yield mounted.path, None
    else:
        yield data, None


IOPROF: Final = (sys.executable, "-m", "ioprof")


def outcome(case: Case, data: Path, folder: Path) -> Outcome:
    """Record the job of the case in `folder`, with `data` as its data."""
    output = run_case(case, data, folder, IOPROF)
    return outcome_of(Run.load(folder / "run"), output)


def run_case(case: Case, data: Path, folder: Path, ioprof: Sequence[object]) -> str:
    """Record the job of the case in `folder` by the command `ioprof`; what the job printed."""
    skip_without(case)
    if case.prepares:
        made = folder / "prepared"
        words = [sys.executable, PROGRAMS / case.program, "prepare", data, made]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
        data = made
    if case.make:
        data = folder / "made"
        data.mkdir()
        words = [sys.executable, PROGRAMS / str(case.make[0]), data, *map(str, case.make[1:])]
        subprocess.run(words, check=True, capture_output=True, timeout=100)
    with prepared_data(case, data, folder) as (place, join):
        command = (
            *case.before,
            *(case.launcher or (sys.executable,)),
            PROGRAMS / case.program,
            *case.arguments,
        )
        out = ("--out", folder / "run")
        job = (
            ("run", *case.options, *out)
            if case.options
            else ("record", "--quiet", *out, "--", *command)
        )
        ended = subprocess.run(
            [
                *map(str, ioprof),
                *(str(word).format(data=place, fast=data, python=sys.executable) for word in job),
            ],
            cwd=folder,
            env={**os.environ, **dict(case.environment)},
            capture_output=True,
            text=True,
            timeout=200,
            preexec_fn=join,  # type: ignore[arg-type]
        )
        assert 0 == ended.returncode, ended.stderr
    return ended.stdout


def outcome_of(run: Run, output: str = "") -> Outcome:
    """What the report of a run says, with the gain of each advice."""
    advice = [action.action for action in run.summary.verdict.findings]
    run = with_gains(run)
    return Outcome(
        run, head_of(run), advice[0] if advice else "", output, " ".join(report_of(run).split())
    )


def head_of(run: Run) -> str:
    """The first lines of the report that are not empty."""
    return "\n".join([line for line in report_of(run).splitlines() if line.strip()][:HEAD_LINES])


def report_of(run: Run) -> str:
    """The report as the terminal shows it."""
    return printed(summary_text(run.summary))
