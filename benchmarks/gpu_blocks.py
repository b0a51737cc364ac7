"""What a machine with a GPU is to show, in blocks: the most important first, each with its own
time, each written to the file as its lines come, so that a machine that ends leaves what was
measured.

    python3 benchmarks/gpu_blocks.py --out FILE [--seconds 720] [--only NAME] [--small]

`make test-gpu` calls it under the machine's own Python. Without a GPU, or with `--small`, the same
blocks run on the CPU and on an emulated device, in small: to see that they run. What a block needs
and the machine lacks is named in its lines, and it goes on without.
"""

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PROGRAMS: Final = ROOT / "tests" / "programs"
NEEDED: Final = (
    *("lmdb", "msgspec", "numpy", "PIL", "polars", "psutil", "pytest", "rich", "simplejpeg"),
    *("torch", "typer"),
)
"""What ioprof imports, and the block of tests."""
TESTS: Final = "-c tests/gpu/pytest.ini --rootdir=. tests/gpu"
_ENDING_S: Final = 15.0
"""Until a block that was told to stop is killed: it ends its jobs, and unmounts a disk."""
_RATE: Final = 40_000_000
"""Bytes per second of the throttled disk: less than any GPU trains on."""


@dataclass(frozen=True)
class Setting:
    """Where a block runs."""

    folder: Path
    """For its files."""
    is_small: bool

    @property
    def device(self) -> str:
        """Of the built-in job."""
        return "emulated:h100" if self.is_small else "cuda"

    @property
    def images(self) -> int:
        """Of a dataset."""
        return 240 if self.is_small else 4000


@dataclass(frozen=True)
class Block:
    """A part of the measurements."""

    title: str
    seconds: int
    """That it may take."""
    lines: Callable[[Setting], Iterator[str]]


# ------------------------------------------------------------------------------------ the blocks


def cold_storage(setting: Setting) -> Iterator[str]:
    """A job bound by cold storage: compute, copies and reads on one clock, and faster storage
    predicted, then made.
    """
    yield "| data | steps | from storage | read while computing | copied while computing | bound |"
    yield "|---|---:|---:|---:|---:|---|"
    gains = []
    with storage(setting) as (disk, slower, why):
        for layout, image in (("lmdb", "rgb256"), ("files", "original")):
            data = dataset(setting, disk, layout, image)
            slower(_RATE)
            first = train(setting, data, f"cold-{layout}", slower)
            yield shared_clock(layout, first)
            base_s, predicted = predicted_storage(first)
            slower(2 * _RATE)
            cache = "cold" if why is None else "warm"
            second = train(setting, data, f"fast-{layout}", slower, cache)
            change = "twice the rate" if why is None else "all in memory"
            gains.append(gain_row(layout, change, base_s, predicted, step_s(second)))
            slower(0)
        yield ""
        yield f"The disk: {why or f'throttled to {_RATE / 1e6:.0f} MB/s'}."
    yield ""
    yield "| data | storage | ms a step | predicted | made | error |"
    yield "|---|---|---:|---:|---:|---:|"
    yield from gains


def shared_gpu(setting: Setting) -> Iterator[str]:
    """Two ranks on one device over gloo, with staged data; in small also twice the data, cold."""
    data = dataset(setting, setting.folder, "files", "original")
    (setting.folder / "fast").mkdir()
    if setting.is_small:
        options = ["--ranks", 2, "--workers", 1, "--dataset-scale", "2x", "--cache", "cold"]
        command = ["run", data, "--device", setting.device, "--steps", 8, "--batch-size", 8]
        ioprof(setting, *command, *options, "--stage-to", setting.folder / "fast", "--out", "ranks")
    else:
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2]
        ioprof(setting, "stage", data, setting.folder / "fast")
        program = [PROGRAMS / "share_gpu.py", setting.folder / "fast", 150]
        ioprof(setting, "record", "--quiet", "--out", "ranks", "--", *launch, *program)
    run = loaded(setting.folder / "ranks")
    steps = run.steps
    yield "| rank | steps | causes sum to the steps | exchange and straggler s | bound |"
    yield "|---|---:|---|---:|---|"
    import polars as pl

    from ioprof.format.schema import CAUSES

    causes, wrong = [f"{cause}_ns" for cause in CAUSES], []
    for rank in sorted(steps["rank"].unique()):
        part = steps.filter(pl.col("rank") == rank).drop_nulls("host_ns")
        total = part.select(pl.sum_horizontal(causes))
        exact = (part["end_ns"] - part["start_ns"]).to_list() == total.to_series().to_list()
        waited = sum(int(part[f"{name}_ns"].sum() or 0) for name in ("exchange", "straggler"))
        cells = (rank, len(part), "yes" if exact else "NO", f"{waited / 1e9:.2f}")
        yield f"| {' | '.join(map(str, cells))} | {run.summary.verdict.bound_by} |"
        wrong += [] if exact else [str(rank)]
    if wrong:
        raise RuntimeError(f"causes of rank {', '.join(wrong)} do not sum to the steps")


def decoding_on_the_gpu(setting: Setting) -> Iterator[str]:
    """DALI, which decodes on the GPU, beside the same on the CPU."""
    if importlib.util.find_spec("nvidia.dali") is None:
        yield "Skipped: nvidia-dali is not installed."
        return
    data = dataset(setting, setting.folder, "files", "original")
    yield "| decoder | samples/s | device busy | bound |"
    yield "|---|---:|---:|---|"
    for device in ("cpu",) if setting.is_small else ("cpu", "mixed"):
        out, program = f"dali-{device}", [sys.executable, PROGRAMS / "decode_by_dali.py"]
        steps = 12 if setting.is_small else 150
        ioprof(setting, "record", "--quiet", "--out", out, "--", *program, data, device, steps)
        found = loaded(setting.folder / out).summary
        compute = next(each for each in found.steps.causes if each.cause == "compute")
        rate, busy = found.throughput.steady_samples_per_s, compute.share
        shown = f"{rate:,.0f}" if rate else "not known"
        yield f"| {device} | {shown} | {busy or 0:.1%} | {found.verdict.bound_by} |"


def gains(setting: Setting) -> Iterator[str]:
    """The ten gains of `gpu_gains.py`."""
    program = [sys.executable, str(ROOT / "benchmarks" / "gpu_gains.py")]
    yield from said_by([*program, *(["--small"] if setting.is_small else [])], setting)


def cost_of_small_steps(setting: Setting) -> Iterator[str]:
    """What windows and hooks cost a loop that only launches: pairs, one after the other."""
    steps = 30 if setting.is_small else 4000
    program = [
        sys.executable,
        PROGRAMS / "train_on_gpu.py",
        "python",
        steps,
        setting.folder,
        "without",
    ]
    own = [sys.executable, "-m", "ioprof", "record", "--quiet"]
    yield "| pair | without ms | recorded ms | recorded without windows ms |"
    yield "|---|---:|---:|---:|"
    ratios: list[tuple[float, float]] = []
    for pair in range(1 if setting.is_small else 4):
        variants = [
            [],
            [*own, "--out", f"small-{pair}", "--"],
            [*own, "--gpu-window", "off", "--out", f"hooks-{pair}", "--"],
        ]
        bare, recorded, hooks = (milliseconds([*each, *program], setting) for each in variants)
        ratios.append((recorded / bare - 1, hooks / bare - 1))
        yield f"| {pair + 1} | {bare:.3f} | {recorded:.3f} | {hooks:.3f} |"
    medians = [sorted(each)[len(each) // 2] for each in zip(*ratios, strict=True)]
    yield ""
    yield f"Median: {medians[0]:+.1%} with windows, {medians[1]:+.1%} with hooks alone."


def reads_by_cufile(setting: Setting) -> Iterator[str]:
    """A file read by KvikIO, which uses cuFile, or says that it is in its compatibility mode."""
    if importlib.util.find_spec("kvikio") is None:
        yield "Skipped: kvikio is not installed."
        return
    file = setting.folder / "bytes"
    file.write_bytes(os.urandom(1 << 20) * (8 if setting.is_small else 256))
    program = (
        "import sys, kvikio, numpy\n"
        "target = numpy.empty(1 << 20, numpy.uint8) if sys.argv[2] == 'cpu' else"
        " __import__('torch').empty(1 << 20, dtype=__import__('torch').uint8, device='cuda')\n"
        "size = 0\n"
        "with kvikio.CuFile(sys.argv[1], 'r') as file:\n"
        "    while (count := file.pread(target, 1 << 20, size).get()):\n"
        "        size += count\n"
        "print(size)\n"
    )
    device = "cpu" if setting.is_small else "cuda"
    command = [sys.executable, "-c", program, file, device]
    ioprof(setting, "record", "--quiet", "--out", "cufile", "--", *command)
    found = loaded(setting.folder / "cufile").summary
    seen = found.storage.bytes + found.storage.other_bytes
    yield f"{file.stat().st_size / 1e6:.0f} MB read, {seen / 1e6:.0f} MB recorded as reads."
    yield from (f"Not seen: {each}" for each in found.capture.not_seen[:4])


def tests(setting: Setting) -> Iterator[str]:
    """The tests of tests/gpu, as far as there is time."""
    words = os.environ.get("TEST_ARGS", "").split()
    command = [sys.executable, "-m", "pytest", "-v", "-x", *TESTS.split(), *words]
    yield from (f"    {line}" for line in said_by(command, setting, folder=ROOT))


BLOCKS: Final = {
    "storage": Block("A job bound by cold storage", 170, cold_storage),
    "ranks": Block("Two ranks on one device, staged data", 90, shared_gpu),
    "dali": Block("Decoding on the GPU by DALI", 60, decoding_on_the_gpu),
    "gains": Block("Ten predicted gains, then made", 240, gains),
    "cost": Block("What recording costs small steps", 70, cost_of_small_steps),
    "cufile": Block("Reads by cuFile", 20, reads_by_cufile),
    "tests": Block("tests/gpu", 300, tests),
}
"""The most important first. Together they may take longer than the whole; the last ones then have
less, or nothing."""


# ------------------------------------------------------------------------------- what they share


def dataset(setting: Setting, folder: Path, layout: str, image: str) -> Path:
    """A synthetic dataset in that folder."""
    from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate

    tree, place = setting.folder / "tree", folder / f"{layout}-{image}"
    if not tree.exists():
        generate(tree, GenerateOptions(images=setting.images, classes=4))
    if not place.exists():
        convert(tree, place, ConvertOptions(layout=layout, image=image))
    return place


@contextmanager
def storage(setting: Setting) -> Iterator[tuple[Path, Any, str | None]]:
    """A folder, what sets the rate of its disk for programs that are then started, and why that is
    not possible; None: it is.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    import pytest
    import slow_storage

    size = (1 << 28) if setting.is_small else (3 << 30)
    with ExitStack() as stack:
        disk = why = None
        try:
            disk = stack.enter_context(slow_storage.throttled_disk(setting.folder, size))
        except pytest.skip.Exception as skipped:
            why = f"not throttled, {skipped.msg}"
        yield (disk.path if disk else setting.folder), Rate(disk), why


class Rate:
    """Throttles a disk, where there is one; programs join the group by `join`."""

    def __init__(self, disk: Any) -> None:
        self.join = disk.join if disk else None
        self._disk = disk

    def __call__(self, bytes_per_s: int) -> None:
        """0: no limit."""
        if self._disk:
            self._disk.throttle(bytes_per_s)


def train(setting: Setting, data: Path, out: str, slower: Any, cache: str = "cold") -> Any:
    """The built-in job, as a run."""
    steps, batch = (10, 8) if setting.is_small else (60, 64)
    words = ["run", data, "--device", setting.device, "--steps", steps, "--batch-size", batch]
    ioprof(setting, *words, "--workers", 2, "--cache", cache, "--out", out, joining=slower.join)
    return loaded(setting.folder / out)


def shared_clock(layout: str, run: Any) -> str:
    """A row: how much was read and copied while the device computed, by one clock."""
    from ioprof.analysis.intervals import intersect, total, union
    from ioprof.analysis.selection import intervals

    rows = run.trace.rows(kinds=["compute", "kernel", "h2d", "read", "fault"])
    import polars as pl

    computed, copied, read = (
        union(intervals(rows.filter(condition)))
        for condition in (
            pl.col("kind").is_in(["compute", "kernel"]) & (pl.col("stream") >= 0),
            pl.col("kind") == "h2d",
            pl.col("kind").is_in(["read", "fault"]) & (pl.col("source") == "storage"),
        )
    )
    beside = (f"{total(intersect(part, computed)) / 1e9:.2f} of {total(part) / 1e9:.2f} s"
              for part in (read, copied))  # fmt: skip
    from_storage = run.summary.storage.bytes_from_storage / 1e6
    cells = (layout, str(run.summary.steps.count), f"{from_storage:,.0f} MB", *beside)
    return f"| {' | '.join(cells)} | {run.summary.verdict.bound_by} |"


def predicted_storage(run: Any) -> tuple[float, Any]:
    """The time of a step, and what twice the rate of storage would bring, or why that is not
    predicted.
    """
    from ioprof.errors import IoprofError
    from ioprof.model.changes import Change
    from ioprof.model.prediction import whatif

    try:
        return step_s(run), whatif(run.trace, Change(speeds={"storage": 2.0}))
    except IoprofError as error:
        return step_s(run), str(error)


def step_s(run: Any) -> float:
    """Of a steady step."""
    from ioprof.model.pace import measured
    from ioprof.model.recorded import pipeline

    return float(measured(pipeline(run.trace)).step_s)


def gain_row(layout: str, change: str, base_s: float, found: Any, made_s: float) -> str:
    """A row of a table of predictions."""
    if isinstance(found, str):
        return f"| {layout} | {change} | {base_s * 1e3:.1f} | {found} | {made_s * 1e3:.1f} | |"
    shown_ms = base_s * 1e3 / found.speedup
    low, high = base_s * 1e3 / found.speedup_range.high, base_s * 1e3 / found.speedup_range.low
    cells = (
        f"{base_s * 1e3:.1f}",
        f"{shown_ms:.1f} ({low:.1f} to {high:.1f})",
        f"{made_s * 1e3:.1f}",
    )
    return f"| {layout} | {change} | {' | '.join(cells)} | {shown_ms / (made_s * 1e3) - 1:+.1%} |"


def loaded(folder: Path) -> Any:
    """A run with its analysis."""
    from ioprof.report.run import Run

    return Run.load(folder)


def ioprof(setting: Setting, *words: object, joining: Any = None) -> None:
    """A command in the block's folder. RuntimeError: it failed, with the end of what it said."""
    command = [sys.executable, "-m", "ioprof", *map(str, words)]
    ended = subprocess.run(  # joins a control group
        command, cwd=setting.folder, capture_output=True, text=True, check=False, preexec_fn=joining
    )
    if ended.returncode:
        raise RuntimeError(f"ioprof {words[0]}: {' '.join(ended.stderr.split())[-400:]}")


def milliseconds(command: list[Any], setting: Setting) -> float:
    """Of a step, as `train_on_gpu.py` says."""
    said = "\n".join(said_by([str(word) for word in command], setting))
    found = re.search(r"([\d.]+) ms", said)
    if found is None:
        raise RuntimeError(f"no time of a step: {said[-300:]}")
    return float(found[1])


def said_by(command: list[str], setting: Setting, folder: Path | None = None) -> Iterator[str]:
    """The lines of a program as they come. RuntimeError: it failed, with its last line."""
    last = ""
    with subprocess.Popen(
        command,
        cwd=folder or setting.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            last = line.rstrip("\n") or last
            yield line.rstrip("\n")
    if process.returncode:
        program = next(Path(word).name for word in command[1:] if not word.startswith("-"))
        raise RuntimeError(f"{program} ended with {process.returncode}: {last}")


# ----------------------------------------------------------------------------------- all of them


def main() -> int:
    """Run the blocks, or one of them as a program of its own. 1: a block failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="where the lines are written as they come")
    parser.add_argument("--seconds", type=float, default=720, help="for all blocks")
    parser.add_argument("--only", choices=BLOCKS, help="one block")
    parser.add_argument("--small", action="store_true", help="on the CPU and an emulated device")
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if missing := [name for name in NEEDED if not importlib.util.find_spec(name)]:
        print(f"skipped: not installed: {', '.join(missing)}")
        return 0
    if options.folder:
        print_block(BLOCKS[options.only], Setting(options.folder, options.small))
        return 0
    import torch

    small = options.small or not torch.cuda.is_available()
    where = "CPU and an emulated device, in small" if small else torch.cuda.get_device_name()
    with Writer(options.out) as writer:
        writer.add(f"# Blocks of `make test-gpu`: {where}\n")
        end = time.monotonic() + options.seconds
        ended_well = [
            run_block(name, small=small, left_s=end - time.monotonic(), writer=writer)
            for name in ([options.only] if options.only else BLOCKS)
        ]
    return 0 if all(ended_well) else 1


class Writer:
    """Writes lines to the terminal and to a file, each to its storage at once."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("w") if path else None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def add(self, line: str) -> None:
        """Write a line."""
        print(line, flush=True)
        if self._file:
            self._file.write(f"{line}\n")
            self._file.flush()
            os.fsync(self._file.fileno())


def print_block(block: Block, setting: Setting) -> None:
    """Print the lines of a block. SystemExit, so that its disk is unmounted: by SIGTERM."""

    def stop(_number: int, _frame: object) -> None:
        sys.exit(1)

    def stop_again(lost: "sys.UnraisableHookArgs") -> None:
        if lost.exc_type is SystemExit:  # raised within a callback of the interpreter
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            sys.__unraisablehook__(lost)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGALRM, stop)
    sys.unraisablehook = stop_again
    for line in block.lines(setting):
        print(line, flush=True)


def run_block(name: str, *, small: bool, left_s: float, writer: Writer) -> bool:
    """Run a block in a process of its own, for its time or what is left of all. False: it failed;
    one that is stopped has not.
    """
    block = BLOCKS[name]
    writer.add(f"\n## {block.title}\n")
    # a small machine that does other things besides is slower
    limit_s = min(block.seconds * (3 if small else 1), left_s)
    if limit_s < 1:
        writer.add("Not run: no time was left.")
        return True
    stopped = threading.Event()

    def stop(process: "subprocess.Popen[str]") -> None:
        stopped.set()
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING_S)
            os.killpg(process.pid, signal.SIGKILL)

    # A disk that could not be unmounted stays, and does not end the blocks after this one.
    with tempfile.TemporaryDirectory(prefix="ioprof-gpu-", ignore_cleanup_errors=True) as folder:
        words = [sys.executable, __file__, "--only", name, "--in", folder]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        began, errors = time.monotonic(), list[str]()
        with subprocess.Popen(
            [*words, *(["--small"] if small else [])],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            reading = threading.Thread(target=lambda: errors.extend(process.stderr or []))
            ending = threading.Timer(limit_s, stop, [process])
            reading.start()
            ending.start()
            for line in process.stdout:
                writer.add(line.rstrip("\n"))
            code = process.wait()
            ending.cancel()
            ending.join()
            reading.join()
        took_s = time.monotonic() - began
        is_stopped = code != 0 and stopped.is_set()
        if is_stopped:  # a run that is stopped ends by an error of its own
            writer.add(f"\nStopped after {limit_s:.0f} s.")
        elif code:
            writer.add(f"\nFAILED: {json.dumps(errors[-1].strip() if errors else code)}")
        else:
            writer.add(f"\n({took_s:.0f} s)")
    return code == 0 or is_stopped


if __name__ == "__main__":
    sys.exit(main())
