"""CPU time to load traces of other profilers: `ioprof import` and the tools of their own fields, in
turn, on the same files.

    python benchmarks/import_speed.py [--tools PYTHON] [FORMAT=FILE ...]     formats: kineto,
                                                                             dftracer, darshan

PYTHON is an interpreter that has HolisticTraceAnalysis, dftracer-analyzer (with dftracer-utils
0.0.12) and darshan (default: this one); a tool that it lacks is left out, and said. Without files
it makes one of each format. Loading is from the file to the tables that are analysed: HTA's
`parse_trace_file`, DFAnalyzer's `read_trace_local` (which indexes and sums by time; a folder of its
own each time), PyDarshan's `mod_read_all_dxt_records`, ioprof's spans. The best of three in a
process; medians of processes in turn.
"""

import argparse
import contextlib
import gzip
import importlib
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TURNS, TRIES = 3, 3
MADE_EVENTS = 200_000
TOOLS = {"kineto": "hta", "dftracer": "dftracer", "darshan": "darshan"}
"""The package of the other tool of each format."""


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("files", nargs="*", metavar="FORMAT=FILE")
    options.add_argument("--tools", default=sys.executable, metavar="PYTHON")
    options.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.load:
        who, kind, path = given.load
        print(json.dumps(best(OURS[kind] if who == "ioprof" else THEIRS[kind], Path(path))))
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        files = [each.split("=", 1) for each in given.files] or make_files(Path(folder))
        print(
            "| file | MB of text | ioprof: CPU s | spans | other tool: CPU s | found | ratio,"
            " median (of pairs) |"
        )
        print("|---|---|---|---|---|---|---|")
        for kind, name in files:
            compare(given.tools, kind, Path(name))
    print(f"\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def compare(tools: str, kind: str, path: Path) -> None:
    """One row of the table."""
    ours, theirs = [], []
    for _ in range(TURNS):
        ours.append(loaded(sys.executable, "ioprof", kind, path))
        theirs.append(loaded(tools, TOOLS[kind], kind, path))
    mine = statistics.median(each["cpu_s"] for each in ours)
    row = (
        f"| {kind}: {path.name[:40]} | {text_bytes(path) / 1e6:.1f} | {mine:.3f} |"
        f" {ours[0]['found']} "
    )
    if any("error" in each for each in theirs):
        print(row + f"| {theirs[0]['error']} | | |", flush=True)
        return
    ratios = [other["cpu_s"] / own["cpu_s"] for own, other in zip(ours, theirs, strict=True)]
    other = statistics.median(each["cpu_s"] for each in theirs)
    row += (
        f"| {other:.3f} | {theirs[0]['found']} | {statistics.median(ratios):.1f} ({min(ratios):.1f}"
        f" to {max(ratios):.1f}) |"
    )
    print(row, flush=True)


def loaded(python: str, who: str, kind: str, path: Path) -> dict[str, Any]:
    """What a process of its own measured; `error` where the tool is not there or fails."""
    command = [python, __file__, "--load", who, kind, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=path.resolve().parent)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1][:120]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def best(load: Callable[[Path], str], path: Path) -> dict[str, Any]:
    """The least CPU time of all threads in seconds, and what was found."""
    taken = []
    for _ in range(TRIES):
        start_s = time.process_time()
        with contextlib.redirect_stdout(sys.stderr):
            found = load(path)
        taken.append(time.process_time() - start_s)
    return {"cpu_s": min(taken), "found": found}


def text_bytes(path: Path) -> int:
    """Size, of what is gzipped after unpacking."""
    data = path.read_bytes()
    return len(gzip.decompress(data)) if data[:2] == b"\x1f\x8b" else len(data)


# ------------------------------------------------------------------------------------------- ioprof


def load_here(module: str, function: str) -> Callable[[Path], str]:
    def load(path: Path) -> str:
        sys.path.insert(0, str(ROOT))
        from ioprof.interchange.imported import to_trace

        read = getattr(importlib.import_module(f"ioprof.interchange.{module}"), function)
        trace = to_trace([*read([path])], "run", "ioprof import", "a clock")
        kinds = trace.spans.group_by("kind").len().sort("len", descending=True).rows()
        return ", ".join(f"{count:,} {kind}" for kind, count in kinds[:4])

    return load


OURS = {kind: load_here(kind, f"read_{kind}") for kind in TOOLS}


# -------------------------------------------------------------------------------------- other tools


def load_by_hta(path: Path) -> str:
    from hta.common.trace import parse_trace_file

    logging.disable(logging.CRITICAL)
    _, events, _ = parse_trace_file(str(path))
    return f"{len(events):,} events"


def load_by_dfanalyzer(path: Path) -> str:
    from dask.distributed import Client, LocalCluster, default_client
    from dftracer.analyzer.config import AnalyzerPresetConfigPOSIX
    from dftracer.analyzer.dftracer import DFTracerAnalyzer
    from omegaconf import OmegaConf

    try:
        default_client()
    except ValueError:
        Client(
            LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None)
        )
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        shutil.copy(path, folder)
        preset = OmegaConf.structured(AnalyzerPresetConfigPOSIX())
        analyzer = DFTracerAnalyzer(preset=preset, checkpoint_dir=f"{folder}/checkpoint")
        table = analyzer.read_trace_local(folder).traces.compute()
        return f"{int(table['count'].sum()):,} events in {len(table):,} rows"


def load_by_pydarshan(path: Path) -> str:
    from darshan import DarshanReport

    report = DarshanReport(str(path), read_all=False)
    report.mod_read_all_dxt_records("DXT_POSIX", dtype="pandas")
    reads = [each["read_segments"] for each in report.records["DXT_POSIX"]]
    return (
        f"{sum(map(len, reads)):,} reads of"
        f" {sum(int(each['length'].sum()) for each in reads if len(each)):,} bytes"
    )


THEIRS = {"kineto": load_by_hta, "dftracer": load_by_dfanalyzer, "darshan": load_by_pydarshan}


# -------------------------------------------------------------------------------------------- files


def make_files(folder: Path) -> list[tuple[str, str]]:
    """A file of each format, with about `MADE_EVENTS` events."""
    sys.path.insert(0, str(ROOT / "tests"))
    made = {
        "kineto": folder / "made.json.gz",
        "dftracer": folder / "made.pfw.gz",
        "darshan": folder / "made.darshan",
    }
    made["kineto"].write_bytes(gzip.compress(kineto_text().encode(), 6))
    made["dftracer"].write_bytes(gzip.compress("\n".join(["[", *dftracer_lines()]).encode(), 6))
    from test_import import darshan_log

    made["darshan"].write_bytes(darshan_log(reads=MADE_EVENTS // 2, name=b"/data/a", dxt_version=1))
    return [(kind, str(path)) for kind, path in made.items()]


def kineto_text() -> str:
    """Of each four events an operator, a call, a kernel and an arrow, as torch.profiler writes
    them.
    """
    from kineto_files import MONO_NS, document, event, launch

    parts = []
    host = {"device": 41, "stream": 41}
    for number in range(MADE_EVENTS // 4):
        at_ns = MONO_NS + number * 20_000
        name = (
            f"void at::native::vectorized_elementwise_kernel<4, Functor{number % 50}<float> >(int,"
            " float*)"
        )
        on_device = {
            "device": 0,
            "context": 1,
            "stream": 7,
            "correlation": number + 1,
            "grid": [24, 1, 1],
            "block": [128, 1, 1],
        }
        parts += [
            event("cpu_op", "aten::mul", at_ns, 15_000, **host, External_id=number, Ev_Idx=number),
            launch(at_ns + 1_000, number + 1),
            event("kernel", name, at_ns + 8_000, 9_000, External_id=number, queued=0, **on_device),
            (
                f'\n  {{\n    "ph": "f", "id": {number}, "pid": 0, "tid": 7, "ts": {number}, "cat":'
                ' "ac2g", "name": "ac2g"\n  }'
            ),
        ]
    steps = [
        event("user_annotation", f"ProfilerStep#{step}", MONO_NS + step * 10**8, 10**8, **host)
        for step in range(9)
    ]
    return document(*steps, *parts)


def dftracer_lines() -> list[str]:
    """Lines of version 1: opens, seeks, reads and closes of 1,000 files."""
    names = [
        {
            "id": 1,
            "name": "HH",
            "cat": "dftracer",
            "pid": 1,
            "tid": 1,
            "ph": "M",
            "args": {"name": "n1", "value": 22},
        }
    ]
    names += [
        {
            "id": 2,
            "name": "FH",
            "cat": "dftracer",
            "pid": 1,
            "tid": 1,
            "ph": "M",
            "args": {"name": f"/data/{file}", "value": file},
        }
        for file in range(1000)
    ]
    calls = [
        {
            "id": number,
            "name": ("open64", "lseek64", "read", "close")[number % 4],
            "cat": "POSIX",
            "pid": 9,
            "tid": 9,
            "ph": "X",
            "ts": 10**15 + 20 * number,
            "dur": 9,
            "args": {"ret": 4096, "offset": 0, "fhash": number // 4 % 1000, "hhash": 22},
        }
        for number in range(MADE_EVENTS)
    ]
    return [json.dumps(each, separators=(",", ":")) for each in names + calls]


if __name__ == "__main__":
    main()
