"""The power of the test suite: each of these faults, put into a copy of the code, must be found.

    python benchmarks/mutations.py [--only WORDS] [--all] [--table benchmarks/results/mutations.md]
                                   [--json] [--seconds 3600] [--cores 2] [--check]

The copy, in a temporary folder, has a virtual environment of its own, which has the packages of the
interpreter that runs this. For each fault the tests nearest to the changed file are run first
(`tests/nearest.py`), then all others, without those of the tier `system` unless `--all` is given.
The run ends at the first failure. That test has found the fault if it fails once more with it, and
passes without it. One that fails without it too is left out from then on, and said. A mutation that
cannot be built or imported is a bad one: it is not counted.

`--check` runs no test: it says which mutations do not fit the sources any more, and ends with 1 if
any. A test that calls `problems` is in a file that imports this module, or in one of `_OF_SOURCES`:
these are not run, since every mutation would fail them.
"""

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]


class Mutation(NamedTuple):
    """A fault."""

    name: str
    """What a user would see, or what the code does wrong."""
    file: str
    """Relative to the checkout."""
    old: str
    """A part of the file that occurs once in it; see `pattern_of`."""
    new: str
    """What it is replaced by. It is one line: in Python after the indentation of the old part."""


MUTATIONS: Final = (
    # ------------------------------------------------------------------ what time is charged to
    Mutation(
        "a copy to the device is charged before the gradient exchange",
        "ioprof/analysis/charge/blame.py",
        'Activity("exchange", transfer), Activity("h2d", intervals(of_kind(spans, *COPIES))),',
        'Activity("h2d", intervals(of_kind(spans, *COPIES))), Activity("exchange", transfer),',
    ),
    Mutation(
        "a rank that left a collective later is less late at the next",
        "ioprof/analysis/charge/lateness.py",
        "left_late[met] - left[met]",
        "left[met] - left_late[met]",
    ),
    Mutation(
        "the first rank at a collective is named as the straggler",
        "ioprof/analysis/ranks/stragglers.py",
        'pl.col("arrived_ns").arg_max()',
        'pl.col("arrived_ns").arg_min()',
    ),
    Mutation(
        "the steady rate has one step of the warm-up",
        "ioprof/analysis/summary.py",
        '.over("rank") > warmup(',
        '.over("rank") >= warmup(',
    ),
    Mutation(
        "a quantile at the edge of a class is taken from the class before",
        "ioprof/analysis/charge/duration_classes.py",
        'np.searchsorted(cumulated, wanted, side="right")',
        'np.searchsorted(cumulated, wanted, side="left")',
    ),
    Mutation(
        "the demand of several devices is that of one",
        "ioprof/analysis/reads/demand.py",
        "trace.run.device_samples_per_s * (ranks or 1), False",
        "trace.run.device_samples_per_s, False",
    ),
    Mutation(
        "waits are attributed to a loader for validation",
        "ioprof/analysis/answer/verdict.py",
        'loader.purpose == "train"',
        'loader.purpose != "train"',
    ),
    Mutation(
        "a nested interval cuts the end of the outer one",
        "ioprof/native/intervals.c",
        "if (end > result->ends[result->count - 1]) result->ends[result->count - 1] = end;",
        "result->ends[result->count - 1] = end;",
    ),
    # ------------------------------------------------------------------ comparing and predicting
    Mutation(
        "the ratio of two runs is that of the baseline to the other",
        "ioprof/analysis/comparing.py",
        'entries["step"].other_s / entries["step"].first_s',
        'entries["step"].first_s / entries["step"].other_s',
    ),
    Mutation(
        "differences below 2 % of a step are reported",
        "ioprof/analysis/comparing.py",
        "and abs(grown) >= least_s",
        "",
    ),
    Mutation(
        "a predicted speedup is the inverse",
        "ioprof/model/gains.py",
        "[self.base.step_s / after.step_s, *others]",
        "[after.step_s / self.base.step_s, *others]",
    ),
    Mutation(
        "a prediction ignores the number of workers",
        "ioprof/model/changed.py",
        "_with_workers(each, change.workers, change.prefetch)",
        "_with_workers(each, None, change.prefetch)",
    ),
    Mutation(
        "the time of a step is the sum over ranks",
        "ioprof/model/pace.py",
        "Pace(float(np.mean(steps_s))",
        "Pace(float(np.sum(steps_s))",
    ),
    # ------------------------------------------------------------------ recording a job
    Mutation(
        "a batch has another number in its worker than in the loop",
        "ioprof/instrument/hooks/batch_numbering.py",
        "first, number = blocks[place] return number + task - first",
        "first, number = blocks[place]; return number + task - first + 1",
    ),
    Mutation(
        "kB of /proc/meminfo are 1,000 bytes",
        "ioprof/instrument/samplers/host.py",
        "_number(data, key) * 1024",
        "_number(data, key) * 1000",
    ),
    Mutation(
        "the exit code of a command that a signal ended is lost",
        "ioprof/recording/command.py",
        "_SIGNALLED - code",
        "_SIGNALLED + code",
    ),
    Mutation(
        "a secret in the name of a program is shown in an error",
        "ioprof/recording/command.py",
        "masked_command(command)[0]",
        "command[0]",
    ),
    Mutation(
        "the token of a header with a capital letter is not masked",
        "ioprof/masking.py",
        r"(?i)(\bauthorization",
        r"(\bauthorization",
    ),
    Mutation(
        "a signal to the group of processes reaches the job twice",
        "ioprof/recording/signal_forwarding.py",
        "if self._target is not None and not self._was_sent_to_group(number):",
        "if self._target is not None:",
    ),
    Mutation(
        "a spool that may be another program's is removed",
        "ioprof/recording/pending_run.py",
        "None if doubt else job.origin",
        "job.origin",
    ),
    Mutation(
        "a link in a spool is taken for the file that it leads to",
        "ioprof/recording/spool.py",
        "os.stat(name, dir_fd=folder, follow_symlinks=False)",
        "os.stat(name, dir_fd=folder)",
    ),
    Mutation(
        "run.json is there before the tables that it describes",
        "ioprof/format/trace.py",
        "description = renamed.enter_context(replaced_file(folder / RUN_FILE))",
        "description = folder / RUN_FILE",
    ),
    Mutation(
        "no warning where much of the data of a cold run is in memory",
        "ioprof/jobs/page_cache.py",
        'elif self._state == "cold" and start.ratio > _STAYED_RATIO',
        'elif self._state == "cold" and start.ratio > 1.0',
    ),
    Mutation(
        "an evaluation on an emulated device takes as long as a training step",
        "ioprof/train/accelerators/emulated.py",
        "share * samples / self._device.samples_per_s",
        "samples / self._device.samples_per_s",
    ),
    Mutation(
        "the least value that an option may have is refused",
        "ioprof/options.py",
        "least is not None and value < least",
        "least is not None and value <= least",
    ),
    # ------------------------------------------------------------------ reading capture files
    Mutation(
        "what was being flushed when a process was killed is read twice",
        "ioprof/ingest/chunks.py",
        "sequences[copies] == sequences[origins[copies] - 1]",
        "sequences[copies] > sequences[origins[copies] - 1]",
    ),
    Mutation(
        "the offset between two wall clocks has the wrong sign",
        "ioprof/ingest/clocks/clock_offset.py",
        "other.anchor.offset_ns - first.anchor.offset_ns",
        "first.anchor.offset_ns - other.anchor.offset_ns",
    ),
    Mutation(
        "a string that fills its records takes one more",
        "ioprof/native/chunks.c",
        "(length + IOPROF_RECORD_BYTES - 1) / IOPROF_RECORD_BYTES",
        "length / IOPROF_RECORD_BYTES + 1",
    ),
    Mutation(
        "a span that takes no time counts as damage",
        "ioprof/native/chunks.c",
        "r->end_ns < r->start_ns ||",
        "r->end_ns <= r->start_ns ||",
    ),
    # ------------------------------------------------------------------ reports, other programs
    Mutation(
        "a quote in an attribute of the page is not escaped",
        "ioprof/report/page/markup.py",
        "quote=True",
        "quote=False",
    ),
    Mutation(
        "a key of summary.json has another name",
        "ioprof/format/run_record/summary_json.py",
        'name="behind_peers"',
        'name="straggler_wait"',
    ),
    Mutation(
        "counters of an exported trace have milliseconds",
        "ioprof/interchange/chrome.py",
        "self._tracks.zero_ns) / 1e3",
        "self._tracks.zero_ns) / 1e6",
    ),
    Mutation(
        "threads of a trace of DFTracer have the number of their process",
        "ioprof/interchange/dftracer.py",
        '"tid": _numbers(columns["tid"])',
        '"tid": _numbers(columns["pid"])',
    ),
    Mutation(
        "launches of a trace of Kineto have the process for the thread",
        "ioprof/native/scan/kineto.c",
        "cells[LAUNCH_THREAD] = row[STREAM];",
        "cells[LAUNCH_THREAD] = row[DEVICE];",
    ),
    # ------------------------------------------------------------------ datasets
    Mutation(
        "a dataset is renamed to its place before its data is on storage",
        "converters/job/dataset_writer.py",
        "sync_file_system(work.folder)",
        "work.folder.stat()",
    ),
    Mutation(
        "verify does not compare the digest",
        "converters/job/verification.py",
        '("records", "bytes", "digest")',
        '("records", "bytes")',
    ),
    Mutation(
        "the size of a scaled dataset is rounded down",
        "loaders/scaling.py",
        "max(1, round(float(fraction) * len(known)))",
        "max(1, int(float(fraction) * len(known)))",
    ),
    # ------------------------------------------------------------------ loaders
    Mutation(
        "the order of the samples depends on the number of workers",
        "loaders/order.py",
        "epoch_order(records, options.seed, epoch), epoch",
        "epoch_order(records, options.seed + options.workers, epoch), epoch",
    ),
    Mutation(
        "samples that do not fill a step of all ranks are left out",
        "loaders/order.py",
        "[*starts[1:], records]",
        "[*starts[1:], min(records, starts[-1] + per_step)]",
    ),
    Mutation(
        "two workers may read the same sample in an epoch",
        "loaders/streams.py",
        "begin + int(sizes[place])",
        "begin + int(sizes[place]) + 1",
    ),
    Mutation(
        "the first key of an LMDB is looked for in the shard before",
        "loaders/lmdb_records.py",
        "bisect_right(self._ends, index)",
        "bisect_right(self._ends, index - 1)",
    ),
    Mutation(
        "the crop of an evaluation is one pixel to the right",
        "loaders/crops.py",
        "(width - side) // 2, (height - side) // 2",
        "(width - side + 1) // 2, (height - side) // 2",
    ),
    # ------------------------------------------------------------------ the capture libraries
    Mutation(
        "a closed descriptor keeps the file that it had",
        "ioprof/native/capture/hooks_descriptors.c",
        "forget_file(descriptor); int64_t start",
        "int64_t start",
    ),
    Mutation(
        "a descriptor does not share its position with its copy",
        "ioprof/native/capture/open_files.c",
        "set_flags(original, FILE_SHARED);",
        "",
    ),
    Mutation(
        "calls of a vfork child are taken for its parent's",
        "ioprof/native/capture/vfork.c",
        "addl $0x10000, %esi",
        "addl $0, %esi",
    ),
    Mutation(
        "a successful read of what was not cached changes errno",
        "ioprof/native/capture/reads.c",
        "errno = saved_errno; return make_rest(",
        "(void)saved_errno; return make_rest(",
    ),
    Mutation(
        "O_DIRECT reads count as reads from the page cache",
        "ioprof/native/capture/source.c",
        "{read->nowait_bytes, rest_bytes, 0}",
        "{0, 0, 0}",
    ),
    Mutation(
        "the offset of a sendfile is where it ended",
        "ioprof/native/capture/hooks_read.c",
        "reading.position = *(from_offset) - copied;",
        "reading.position = *(from_offset);",
    ),
    Mutation(
        "what a stream had in its buffer counts again as read from a pipe",
        "ioprof/native/capture/hooks_stdio.c",
        "taken + (int64_t)buffered(stream) - (int64_t)filling->buffered",
        "taken + (int64_t)buffered(stream)",
    ),
    Mutation(
        "the offset of a madvise is that in the mapping, not in the file",
        "ioprof/native/capture/hooks_mmap.c",
        "mapping->offset + (int64_t)",
        "(int64_t)",
    ),
    Mutation(
        "a record is counted before it is written",
        "ioprof/native/ring/ring.h",
        "*slot = *record; ring_publish(writer, 1);",
        "ring_publish(writer, 1); *slot = *record;",
    ),
    Mutation(
        "a flushed chunk keeps its flush count",
        "ioprof/native/ring/ring.c",
        "((writer->state >> 32) + 1) << 32",
        "(writer->state >> 32) << 32",
    ),
    Mutation(
        "of short calls of a decoder only the last one counts",
        "ioprof/native/spans/sample_spans.c",
        "state->held[place].sum_ns += end_ns - start_ns;",
        "state->held[place].sum_ns = end_ns - start_ns;",
    ),
    Mutation(
        "a collective of NCCL ends with the channel that is recorded last",
        "ioprof/native/nccl/operations.c",
        "while (value > known",
        "while (value != known",
    ),
)

_TESTS_OF: Final = {
    "ioprof/native/capture": (
        "test_capture*.py", "test_source*.py", "test_reads.py", "test_ways_of_reading.py",
        "test_transparent.py", "test_mapped_data.py",
    ),
    "ioprof/native/ring": ("test_ring.py", "test_spans.py", "test_ingest.py"),
    "ioprof/native/spans": ("test_spans.py", "test_decoders.py", "test_observers.py"),
    "ioprof/native/scan": ("test_*_scan.py",),
    "ioprof/native/nccl": ("test_nccl_plugin.py",),
}  # fmt: skip
"""Of C sources: `tests/nearest.py` knows them by their names alone, which few tests contain."""
_OF_SOURCES: Final = ("test_architecture.py", "test_house.py")
"""They check how the sources are written, not what they do."""
_IMPORTS_THIS: Final = re.compile(rf"^\s*(?:from|import) {Path(__file__).stem}\b", re.MULTILINE)
_SANITY: Final = (Path("ioprof/jobs/byte_sizes.py"), 3)
"""A trivial change, and how many of the test files nearest to it the copy must pass unchanged."""
_BUILD: Final = ("setup.py", "-q", "build_ext", "--inplace")
_SHOWN_CHARS: Final = 200
_STOPPED: Final = "NOT FOUND by the tests that were run"
"""What is said where the time was over before all tests were run."""
_FAILED: Final = re.compile(
    r"^(?:FAILED|ERROR) (tests/\S+?\.py::[^\s\[]+(?:\[.*?\])?)(?= - |$)", re.MULTILINE
)
_NOT_COLLECTED: Final = re.compile(r"^ERROR (tests/\S+?\.py)(?= - |$)", re.MULTILINE)
_NO_TESTS: Final = (3, 4, 5)
"""Exit codes of pytest: an error in it; conftest.py cannot be imported; no test was collected."""


# ------------------------------------------------------------------------------------ texts


@cache
def pattern_of(old: str) -> re.Pattern[str]:
    """What finds that part of a source, however that is broken into lines.

    Any white space stands for any other; within brackets there may be some, and a comma at the end.
    """
    words = r"\s+".join(re.escape(word) for word in old.split())
    opened = re.sub(r"(\\[(\[{])", r"\1\\s*", words)
    return re.compile(re.sub(r"(\\[)\]}])", r"\\s*,?\\s*\1", opened))


def mutated(mutation: Mutation, text: str) -> str:
    """The text of the file with the fault."""
    return pattern_of(mutation.old).sub(lambda _: mutation.new, text, count=1)


def problems(root: Path = ROOT) -> list[str]:
    """Which mutations do not fit the sources, a line for each."""
    names = [mutation.name for mutation in MUTATIONS]
    found = [
        f"{name}: there are two of that name"
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    for mutation in MUTATIONS:
        where = f"{mutation.name}: {mutation.file}"
        if not (root / mutation.file).is_file():
            found.append(f"{where}: there is no such file")
            continue
        text = (root / mutation.file).read_text()
        count = len(pattern_of(mutation.old).findall(text))
        if count != 1:
            found.append(f"{where}: has {count} times, and not once: {mutation.old}")
        elif mutated(mutation, text).split() == text.split():
            found.append(f"{where}: is not changed by it")
        elif mutation.file.endswith(".py") and (error := _syntax_error(mutated(mutation, text))):
            found.append(f"{where}: is no Python with it: {error}")
    return found


def _syntax_error(text: str) -> str | None:
    try:
        ast.parse(text)
    except SyntaxError as error:
        return f"{error.msg} (line {error.lineno})"
    return None


# ------------------------------------------------------------------------------------ the copy


@dataclass(frozen=True)
class Checkout:
    """A copy of the checkout."""

    folder: Path
    python: Path
    """Of its virtual environment."""

    @property
    def environment(self) -> dict[str, str]:
        """Of all that runs in it. By `CI`, and by the day, the tests are the same in each run."""
        others = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        }
        path = f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        own = {"CI": "true", "PATH": path, "VIRTUAL_ENV": str(self.python.parents[1])}
        return {"IOPROF_TESTS_DAY": str(int(time.time() // 86400)), **others, **own}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python in it."""
        return subprocess.run(
            [self.python, *words], cwd=self.folder, env=self.environment, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def call(self, *words: str) -> None:
        """The same; SystemExit with the last line that was written if it fails."""
        ended = self.run(*words)
        if ended.returncode:
            what = f"{' '.join(words[:3])}: {_last_line(ended.stdout)}"
            raise SystemExit(f"the copy of the checkout cannot be made: {what}")

    def libraries(self) -> list[Path]:
        """What was built of C: where it is used, and where setup.py builds and copies it from."""
        return [*self.folder.glob("ioprof/*.so"), *self.folder.glob("build/lib*/ioprof/*.so")]


def make_checkout(folder: Path) -> Checkout:
    """A copy of all files that git does not ignore, built, with this interpreter's packages."""
    copy = Checkout(folder / "checkout", folder / "environment" / "bin" / "python")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.rstrip("\0").split("\0"):
        if os.path.lexists(ROOT / name):  # else it was removed, and that is not committed
            (copy.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy.folder / name, follow_symlinks=False)
    environment = copy.python.parents[1]
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    # That of Python 3.11 is too old to build ioprof, and would come before that of the packages.
    copy.call("-m", "pip", "uninstall", "-q", "-y", "setuptools")
    packages = [each for each in sys.path if each.endswith(("/site-packages", "/dist-packages"))]
    own = next(environment.glob("lib/python*/site-packages"))
    (own / "packages.pth").write_text("\n".join(packages) + "\n")
    options = "-q --disable-pip-version-check --no-deps --no-build-isolation --ignore-installed"
    copy.call("-m", "pip", "install", *options.split(), "-e", ".")
    copy.call(*_BUILD)  # pip builds in a folder of its own
    _link(ROOT / "build" / "trace-processor", copy.folder / "build" / "trace-processor")
    _link(Path(sys.prefix, "examples"), environment / "examples")
    return copy


def _link(there: Path, here: Path) -> None:
    """What some tests need, where it is there."""
    if there.exists():
        here.parent.mkdir(parents=True, exist_ok=True)
        here.symlink_to(there)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:_SHOWN_CHARS]


@contextmanager
def applied(copy: Checkout, mutation: Mutation) -> Iterator[str | None]:
    """The copy has the fault within the block. Yields why it is a bad one; None: it is not."""
    path, is_python = copy.folder / mutation.file, mutation.file.endswith(".py")
    files = [path] if is_python else [path, *copy.libraries()]
    kept = [(each, each.read_bytes(), each.stat()) for each in files]
    try:
        path.write_text(mutated(mutation, path.read_text()))
        yield None if is_python else _build(copy, {each: content for each, content, _ in kept[1:]})
    finally:
        # With their times: what is as it was is not built anew, and no bytecode of the fault stays.
        for each, content, status in kept:
            each.unlink(missing_ok=True)  # a process may have a library mapped
            each.write_bytes(content)
            each.chmod(status.st_mode)
            os.utime(each, ns=(status.st_atime_ns, status.st_mtime_ns))


def _build(copy: Checkout, before: dict[Path, bytes]) -> str | None:
    """Build the C libraries in place; why none is another one. To setup.py they are optional."""
    text = copy.run(*_BUILD).stdout
    if any(path.read_bytes() != content for path, content in before.items()):
        return None
    error = next((line for line in text.splitlines() if "error:" in line), None)
    return f"it cannot be built: {_last_line(error)}" if error else "it makes the same libraries"


# ------------------------------------------------------------------------------------ the tests


@dataclass(frozen=True)
class Running:
    """How the tests are run."""

    cores: int
    most_s: float
    """A run that takes longer is stopped."""
    with_system: bool


@dataclass(frozen=True)
class Ended:
    """A run of tests that has ended."""

    failed: str | None
    """The first test that failed. None: none did."""
    seconds: float
    wrong: str | None = None
    """Why not all tests were run though none failed."""
    is_stopped: bool = False
    """For its time."""


def files_for(file: Path) -> list[str]:
    """All test files, the nearest to a file of the checkout first."""
    from nearest import nearest_tests  # of tests/, which `main` adds to the path

    patterns = _TESTS_OF.get(file.parent.as_posix(), ())
    first, rest = (
        [path.relative_to(ROOT) for each in given for path in sorted((ROOT / "tests").glob(each))]
        for given in (patterns, ("test_*.py",))
    )
    order = dict.fromkeys([*first, *nearest_tests([file]), *rest])
    return [path.as_posix() for path in order if not _looks_at_sources(path)]


def _looks_at_sources(path: Path) -> bool:
    return path.name in _OF_SOURCES or _IMPORTS_THIS.search((ROOT / path).read_text()) is not None


def run_tests(
    copy: Checkout, files: Sequence[str], how: Running, left_out: Sequence[str] = ()
) -> Ended:
    """Run these tests until one fails, by files in this order, of which chunks must be small."""
    cores = how.cores if len(files) > 1 else 0
    options = f"-x -q -p no:cacheprovider -n {cores}"
    options += " --dist load --maxschedchunk 2" if cores else ""
    command = [str(copy.python), "-m", "pytest", *options.split()]
    command += [] if how.with_system else ["-m", "not system"]
    command += [word for each in left_out for word in ("--deselect", each)]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        begin_s = time.monotonic()
        process = subprocess.Popen(
            [*command, *files], cwd=copy.folder, env=copy.environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            code: int | None = process.wait(how.most_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.monotonic() - begin_s
        output.seek(0)
        return _ended(output.read(), code, seconds)


def _ended(text: str, code: int | None, seconds: float) -> Ended:
    """`code`: of pytest; None: it was stopped."""
    if broken := _NOT_COLLECTED.search(text):
        return Ended(None, seconds, f"{broken[1]} cannot be imported")
    if failed := _FAILED.search(text):
        return Ended(failed[1], seconds)
    if code in _NO_TESTS or (code is not None and code < 0):
        return Ended(None, seconds, f"pytest ended with {code}: {_last_line(text)}")
    return Ended(None, seconds, is_stopped=code is None)


@dataclass(frozen=True)
class Outcome:
    """What the tests made of a mutation."""

    mutation: str
    file: str
    found_by: str | None
    """The test that found it. None: none did, or it is a bad one."""
    seconds: float
    """Until then; of a mutation that is not found, of all tests."""
    bad: str | None = None
    """Why it is not counted."""
    is_stopped: bool = False
    """Not all tests were run, for their time."""

    @property
    def verdict(self) -> str:
        """The test that found it, or what else is said of it."""
        if self.bad:
            return f"BAD: {self.bad}"
        if self.found_by is None:
            return _STOPPED if self.is_stopped else "NOT FOUND"
        return self.found_by

    @property
    def line(self) -> str:
        """What is printed of it."""
        how = "found by " if self.found_by else ""
        when = "in" if self.found_by is None else "after"
        return f"{self.file}: {self.mutation}: {how}{self.verdict} {when} {self.seconds:.0f} s"


def outcome(copy: Checkout, mutation: Mutation, how: Running, unsound: list[str]) -> Outcome:
    """Which test finds a mutation. `unsound`: tests that fail without any; more are added to it."""
    files, left_out, seconds = files_for(Path(mutation.file)), list(unsound), 0.0
    while True:
        with applied(copy, mutation) as bad:
            ended = Ended(None, 0.0, bad) if bad else run_tests(copy, files, how, left_out)
            seconds += ended.seconds
            test = ended.failed
            if test is None:
                why = ended.wrong, ended.is_stopped
                return Outcome(mutation.name, mutation.file, None, seconds, *why)
            is_again = run_tests(copy, [test], how).failed is not None
        fails_without = is_again and run_tests(copy, [test], how).failed is not None
        if test in left_out or (is_again and not fails_without):
            return Outcome(mutation.name, mutation.file, test, seconds)
        if fails_without:
            unsound.append(test)
        when = "without any mutation, too" if fails_without else "not each time"
        print(f"left out: {test} fails {when}", file=sys.stderr, flush=True)
        left_out.append(test)


# ------------------------------------------------------------------------------------ the answer


def total_text(outcomes: Sequence[Outcome]) -> str:
    """How many were found."""
    counted = [each for each in outcomes if not each.bad]
    bad = f"; {len(outcomes) - len(counted)} bad" if len(counted) < len(outcomes) else ""
    return f"found {sum(each.found_by is not None for each in counted)} of {len(counted)}{bad}"


def write_table(table: Path, outcomes: Sequence[Outcome]) -> None:
    """Replace the rows of these mutations, or add them, in the order of `MUTATIONS`."""
    old = table.read_text().splitlines() if table.exists() else []
    rows = {line.split("|")[1].strip(): line for line in old if line.startswith("| ")}
    for each in outcomes:
        cells = each.mutation, each.file, each.verdict.replace("|", "/"), f"{each.seconds:.0f}"
        rows[each.mutation] = f"| {' | '.join(cells)} |"
    body = [rows[mutation.name] for mutation in MUTATIONS if mutation.name in rows]
    found_by = [line.split("|")[3].strip() for line in body]
    counted = [name for name in found_by if not name.startswith(("BAD", _STOPPED))]
    num_found = sum(name.startswith("tests/") for name in counted)
    num_stopped, num_left = found_by.count(_STOPPED), len(MUTATIONS) - len(body)
    said = f"{num_found} of {len(counted)} faults, put into the code in turn, made a test fail"
    head = f"# Mutations\n\n`benchmarks/mutations.py`: {said}."
    head += f" Of {num_stopped} the tests were stopped; {num_left} were not tried.\n"
    table.parent.mkdir(parents=True, exist_ok=True)
    columns = ["| mutation | file | found by | seconds |", "| --- | --- | --- | --- |"]
    table.write_text("\n".join([head, *columns, *body, ""]))


def main() -> int:
    """Run the tests on each mutation, and print what found it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="mutations whose name and file contain this")
    parser.add_argument("--all", action="store_true", help="also the tests of the tier `system`")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", type=Path, help="in Markdown; rows of these are replaced")
    parser.add_argument("--seconds", type=float, default=3600, help="then the tests are stopped")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--check", action="store_true", help="whether all fit the sources")
    options = parser.parse_args()
    wrong = problems()
    if options.check or wrong:
        print("\n".join(wrong) or f"{len(MUTATIONS)} mutations, which all fit the sources")
        return 1 if wrong else 0
    sys.path.insert(0, str(ROOT / "tests"))
    chosen = [each for each in MUTATIONS if options.only in f"{each.file}: {each.name}"]
    how = Running(options.cores, options.seconds, options.all)
    outcomes, unsound = list[Outcome](), list[str]()
    with tempfile.TemporaryDirectory(prefix="ioprof-mutations-") as folder:
        copy = make_checkout(Path(folder))
        changed, most = _SANITY
        before = run_tests(copy, files_for(changed)[:most], how)
        if what := before.failed or before.wrong or "they are too slow" * before.is_stopped:
            raise SystemExit(f"the tests of the copy fail without any mutation: {what}")
        for mutation in chosen:
            outcomes.append(outcome(copy, mutation, how, unsound))
            if options.table:
                write_table(options.table, outcomes[-1:])
            if not options.json:
                print(outcomes[-1].line, flush=True)
    found = [asdict(each) for each in outcomes]
    print(json.dumps(found, indent=1) if options.json else total_text(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
