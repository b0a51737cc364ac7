"""Tries jobs under other versions of torch and of Python, each torch in a virtual environment of
its own; writes a table.

    make compat
    python tests/compatibility.py [--only 2.1.2,newest] [--folder build/compat] [--keep] [--table docs/compatibility.md]

ioprof and the tests stay in their own environment; only the programs that are recorded run under
the other one: those of the tests of the hooks (`hooked.JOB_PYTHON`), and
`programs/train_all_parts.py` under `ioprof record`, once with it and once without.

Each environment takes 3 to 8 GB, since torch comes with CUDA, and is removed before the next is
made. What was found stays in the folder, so that the table can be completed version by version.
"""  # noqa: E501

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import polars as pl
from interpreters import interpreters
from repository import PROGRAMS, ROOT

from ioprof.format.trace import Trace
from ioprof.report.run import Run

NEWEST: Final = "newest"
TRIED: Final = {"2.1.2": (3, 11), "2.4.1": (3, 11), "2.7.1": (3, 12), NEWEST: (3, 13)}
"""Versions of torch, and the Python that each is tried with, if this machine has it; else with this
one."""
TESTS: Final = (
    "test_hooks_start.py",
    "test_hooks_loader.py",
    "test_hooks_training.py",
    "test_hooks_compute.py",
    "test_hooks_evaluation.py",
    "test_hooks_beside.py",
    "test_hooks_other_loaders.py",
    "test_libraries.py::test_webdataset_shards",
)
NUMPY_1_BEFORE: Final = (2, 3)
"""Older versions of torch were built for NumPy 1."""
LIBRARIES: Final = (
    "lmdb",
    "msgspec",
    "nvidia-ml-py",
    "plotly",
    "polars",
    "psutil",
    "rich",
    "simplejpeg",
    "typer",
    "webdataset",
)
"""What `ioprof.profile` needs in the job's environment, which `ioprof record` does not, and a
library whose hooks are tested."""
RANKS: Final = 2
PARTS: Final = (
    "steps",
    "waits",
    "fetches",
    "decodes",
    "forward",
    "backward",
    "optimizer",
    "gradients",
    "collectives",
    "checkpoints",
)
HEADER: Final = """# Versions of torch and Python that were tried

Made by `make compat` on {date}: ioprof in an environment of its own (Python {python}), the jobs under another.
A job of {ranks} ranks on the CPU (`tests/programs/train_all_parts.py`: DataLoader with workers, Pillow, DistributedDataParallel,
checkpoints) says how often each part happened; `all` means that the recording has exactly as many. `output`: batches, losses,
parameters and random numbers are the same to the bit as without a recording. GPUs were not tried: the machine had none.

"""  # noqa: E501
TESTS_LINE: Final = """
Tests: {tests}, with the recorded programs under that torch. Those of DALI, torchdata and SPDL, which are not in its
environment, are skipped. What differs: where `torch.compile(fullgraph=True)` refuses a collective, which it does in torch 2.1
with and without ioprof, the text of the exception is another one with ioprof.
"""  # noqa: E501
PYTHONS_HEADER: Final = """
# Versions of Python without torch

A program that opens a file and has a span of its own, recorded by the same installation of ioprof.

| Python | span | reads | the report says |
|---|---|---|---|
"""
ENVIRONMENTS: Final = """
# Ways to install and to start a job's Python

Tested by `tests/test_environments.py` and `tests/test_injection.py`; ioprof is in none of these environments.

| way | recorded |
|---|---|
| `python -m venv`, with links and with `--copies` | all |
| `uv venv`, `uv run` in it, `uv run --script` of a script with requirements | all |
| zip applications (`zipapp`), PEX files, shiv | all |
| `python -I`, `-E`, `-S`, `env -i`, wrappers such as `nohup` | all |
| PyInstaller, one file and one folder | reads; the report says that Python ran without hooks |
| conda, mamba, micromamba | not tried |
"""  # noqa: E501
SPAN_AND_READ: Final = """
import sys
try:
    import ioprof
    with ioprof.span("mine"):
        pass
except ImportError:
    pass
with open(sys.argv[1]) as file:
    file.read()
"""


@dataclass(frozen=True)
class Outcome:
    """What was found under one version of torch; empty where it was not tried."""

    torch: str
    python: str
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By part: how often it was recorded, and how often it happened."""
    is_same: bool | None = None
    """Whether the job's results were those without a recording."""
    tests: dict[str, int] = field(default_factory=dict)
    """Numbers of tests: passed, failed, skipped."""
    unobserved: list[str] = field(default_factory=list)
    """What the report says was not recorded."""
    failure: str = ""
    """Why nothing could be tried."""
    remark: str = ""
    """Added by hand to a finding: what explains it."""

    @property
    def is_fine(self) -> bool:
        """Whether all was recorded, and nothing changed."""
        is_recorded = (
            all(recorded == happened for recorded, happened in self.parts.values())
            and not self.unobserved
        )
        return (
            not self.failure
            and self.is_same is True
            and not self.tests.get("failed", 0)
            and is_recorded
        )

    def row(self) -> str:
        """A row of the table."""
        counts = [shown(*self.parts[part]) if part in self.parts else "" for part in PARTS]
        same = {True: "same", False: "differs", None: ""}[self.is_same]
        tests = [
            str(self.tests[word]) if self.tests else "" for word in ("passed", "failed", "skipped")
        ]
        return f"| {' | '.join([self.torch, self.python, *counts, same, *tests])} |"


def main() -> int:
    """Try the versions; returns 1 if anything was not recorded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        default=",".join(TRIED),
        help="versions of torch; none: the table is made of what was found before",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "compat",
        help="for environments and findings",
    )
    parser.add_argument("--no-tests", action="store_true", help="only run and compare the job")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--table", type=Path, default=ROOT / "docs" / "compatibility.md")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for version in filter(None, options.only.split(",")):
        found = outcome(version, options.folder, options.keep, not options.no_tests)
        (options.folder / f"torch-{version}.json").write_text(json.dumps(asdict(found), indent=1))
        print(found.row(), *found.unobserved, found.failure, sep="\n", flush=True)
    outcomes = [
        Outcome(**json.loads(path.read_text()))
        for version in TRIED
        if (path := options.folder / f"torch-{version}.json").exists()
    ]  # fmt: skip
    options.table.write_text("".join(document(outcomes, options.folder)))
    return int(not all(found.is_fine for found in outcomes))


def document(outcomes: list[Outcome], folder: Path) -> Iterator[str]:
    """The text of the table's file."""
    yield HEADER.format(
        date=time.strftime("%Y-%m-%d"), python=".".join(map(str, sys.version_info[:2])), ranks=RANKS
    )
    names = ["torch", "Python", *PARTS, "output", "tests passed", "failed", "skipped"]
    yield f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n"
    for found in outcomes:
        yield f"{found.row()}\n"
    yield TESTS_LINE.format(tests=", ".join(f"`{name}`" for name in TESTS))
    yield from (f"\ntorch {found.torch}: {found.remark}\n" for found in outcomes if found.remark)
    for found in outcomes:
        if found.unobserved or found.failure:
            yield f"\ntorch {found.torch}, which ioprof observes in part: the report says\n\n"
            yield from (
                f"- {sentence}\n" for sentence in [*found.unobserved, found.failure] if sentence
            )
    yield PYTHONS_HEADER
    for version, python in sorted(interpreters().items()):
        yield python_row(".".join(map(str, version)), python, folder)
    yield ENVIRONMENTS


def outcome(version: str, folder: Path, keep: bool, tests: bool) -> Outcome:
    """Make an environment with that torch, run the job and the tests, and remove it."""
    python = interpreters().get(TRIED.get(version, (3, 11)), Path(sys.executable))
    environment = folder / f"torch-{version}"
    job_python = environment / "bin" / "python"
    try:
        if not (environment / "complete").exists():
            print(f"== torch {version}: {environment} is being made", flush=True)
            failure = make_environment(environment, python, version)
            if failure:
                return Outcome(version, python.name.removeprefix("python"), failure=failure)
        facts = "import platform, torch; print(torch.__version__, platform.python_version())"
        installed, number = succeed([job_python, "-c", facts], environment).split()
        print(f"== torch {installed}, Python {number}", flush=True)
        found = replace(
            compare_recorded(job_python, environment / "job"), torch=installed, python=number
        )
        return replace(found, tests=run_tests(job_python)) if tests else found
    finally:
        if not keep:
            shutil.rmtree(environment, ignore_errors=True)


def make_environment(environment: Path, python: Path, version: str) -> str:
    """Install torch, and what the tests' programs import; returns why that failed, or nothing."""
    succeed([python, "-m", "venv", "--clear", environment], environment.parent)
    is_old = version != NEWEST and version_numbers(version) < NUMPY_1_BEFORE
    wanted = [
        "torch" if version == NEWEST else f"torch=={version}",
        "numpy<2" if is_old else "numpy",
        "pillow",
        *LIBRARIES,
    ]
    options = ["-q", "--disable-pip-version-check", "--no-cache-dir"]
    installed = subprocess.run(
        [environment / "bin" / "python", "-m", "pip", "install", *options, *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    if installed.returncode:
        return f"it could not be installed: {installed.stderr.strip().splitlines()[-1]}"
    (environment / "complete").touch()
    return ""


def compare_recorded(python: Path, folder: Path) -> Outcome:
    """Run the job with and without a recording, and count what the recording has."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    words = [
        python,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        RANKS,
    ]
    job = [*words, PROGRAMS / "train_all_parts.py"]
    succeed([*job, folder / "bare"], folder)
    succeed(
        [
            sys.executable,
            "-m",
            "ioprof",
            "record",
            "--quiet",
            "--out",
            folder / "run",
            "--",
            *job,
            folder / "recorded",
        ],
        folder,
    )
    bare, results = (results_of(folder / name) for name in ("bare", "recorded"))
    run = Run.load(folder / "run")
    recorded = counts(run.trace)
    happened = {part: sum(result["counts"][part] for result in results) for part in PARTS}
    sentences = [
        f"{hook.unobserved}: {hook.why}"
        for hook in sorted(set(run.trace.run.capture.unobserved), key=lambda hook: hook.unobserved)
    ]
    assert run.summary is not None
    assert all(
        any(sentence.partition(":")[0] in said for said in run.summary.capture.not_seen)
        for sentence in sentences
    )
    parts = {part: (recorded[part], happened[part]) for part in PARTS}
    return Outcome("", "", parts, bare == results, {}, sentences)


def counts(trace: Trace) -> dict[str, int]:
    """How often each part of `train_all_parts.py` was recorded."""
    spans = trace.spans.with_columns(pl.col("kind", "name").cast(pl.String))
    found = {part: spans.filter(pl.col("kind") == kind) for part, kind in KINDS_OF.items()}
    computed = spans.filter(pl.col("kind") == "compute")
    numbers = {part: len(rows) for part, rows in found.items()}
    numbers["decodes"] = found["decodes"].filter(pl.col("name") == "JPEG").height
    numbers["waits"] = found["waits"]["batch"].count()
    for part in ("forward", "backward", "optimizer"):
        numbers[part] = computed.filter(pl.col("name") == part).select("rank", "step").n_unique()
    communicated = spans.filter(pl.col("kind") == "comm")
    numbers["gradients"] = (
        communicated.filter(pl.col("name") == "gradients").select("rank", "step").n_unique()
    )
    numbers["collectives"] = communicated.filter(
        pl.col("name").str.contains("^(all_reduce|barrier)")
    ).height
    return numbers


KINDS_OF: Final = {
    "steps": "step",
    "waits": "wait",
    "fetches": "fetch",
    "decodes": "decode",
    "checkpoints": "checkpoint",
}


def run_tests(job_python: Path) -> dict[str, int]:
    """Run the tests of the hooks with that interpreter; how many passed, failed and were
    skipped."""
    # for programs without hooks that have spans of their own
    for site in job_python.parents[1].glob("lib/python*/site-packages"):
        (site / "ioprof").unlink(missing_ok=True)
        (site / "ioprof").symlink_to(ROOT / "ioprof")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "--tb=short",
        *(ROOT / "tests" / name for name in TESTS),
    ]
    variables = {**os.environ, "IOPROF_JOB_PYTHON": str(job_python)}
    ended = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    lines = ended.stdout.strip().splitlines() or [ended.stderr.strip()]
    print("\n".join(lines[-80:] if ended.returncode else lines[-1:]), flush=True)
    found = {
        word: int(number)
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1])
    }
    failed = found.get("failed", 0) + found.get("error", 0) or int(ended.returncode != 0)
    return {"passed": found.get("passed", 0), "failed": failed, "skipped": found.get("skipped", 0)}


def python_row(version: str, python: Path, folder: Path) -> str:
    """A row of the table of Pythons, from a small program that is recorded under that one."""
    place = folder / f"python-{version}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "program.py").write_text(SPAN_AND_READ)
    (place / "data.txt").write_text("data")
    succeed(
        [
            sys.executable,
            "-m",
            "ioprof",
            "record",
            "--quiet",
            "--out",
            "run",
            "--",
            python,
            "program.py",
            place / "data.txt",
        ],
        place,
    )
    run = Run.load(place / "run")
    has_span = "mine" in run.trace.spans["name"].cast(pl.String).to_list()
    has_read = str(place / "data.txt") in run.trace.files["path"].to_list()
    said = "; ".join(f"{hook.unobserved}: {hook.why}" for hook in run.trace.run.capture.unobserved)
    shutil.rmtree(place)
    return (
        f"| {version} | {'recorded' if has_span else 'no'} | {'recorded' if has_read else 'no'} |"
        f" {said} |\n"
    )


def results_of(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of a job wrote."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def shown(recorded: int, happened: int) -> str:
    """How much of it was recorded."""
    return "all" if recorded == happened else f"{recorded} of {happened}"


def version_numbers(version: str) -> tuple[int, int]:
    """Major and minor."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def succeed(command: list[Any], folder: Path) -> str:
    """What a command prints; its error output is shown if it fails. Variables of the caller's
    Python are not passed on."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    words = [str(word) for word in command]
    cwd = folder if folder.is_dir() else None
    ended = subprocess.run(
        words,
        cwd=cwd,
        env={**variables, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        print(ended.stdout, ended.stderr, sep="\n", file=sys.stderr)
        ended.check_returncode()
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
