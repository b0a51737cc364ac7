"""The cost of capture for reading one small file, compared with DFTracer.

    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/capture_cost.py [--json] [--repeats 11] [--dftracer VENV]

The loop (access_loop.c) runs open, fstat, read, read, close on every file of the sample, all
cached: through the C library and, alternately in the same process, by system calls that preloaded
libraries do not intercept. The difference between the two is measured without a preloaded library,
with ioprof's capture library, and with DFTracer's preload library (`pip install dftracer` in a
separate virtual environment, given by --dftracer; skipped without one). The cost of a library is
the increase of that difference. All variants run in every repeat, alternately; of 40 accesses to a
file the fastest counts, because other programs can only slow one down. Also measured: bytes in the
run folder per access.

The lower limit: five calls are timed by eight readings of the CPU's time stamp counter, 10 ns each,
and their records are 112 bytes of mapped memory which, between two files of 110 kB, is not in the
L1 cache.

What did not work: two processes, one with the library and one without. Their pages have other
addresses, and the same access took up to 10 % more or less, which is twice the measured cost.
Prefetching the memory of the next records before an open: no difference. Computing length and
prefix of a path by words instead of by C library functions, and keeping the state of a descriptor
within one cache line: less in one series of 15, but not in the next two.
"""  # noqa: E501

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from ioprof.format.run_record import RunRecord
from ioprof.instrument import preload
from ioprof.recording.run_writer import make_run_folder

PASSES = 40
LOOP = Path(__file__).with_name("access_loop.c")
CALLS = Path(__file__).with_name("call_cost.c")


class Access(NamedTuple):
    """Time of an access by system calls, and the additional time through the C library;
    microseconds.
    """

    directly_us: float
    longer_us: float


def main() -> None:
    options = parse()
    if options.sample is None or preload.library() is None:
        print(
            "capture cost: not measured; set IOPROF_IMAGENET_SAMPLE to a folder of images, and"
            " build the capture library"
        )
        return
    paths = [str(path) for path in sorted(options.sample.glob("*/*.JPEG"))]
    with tempfile.TemporaryDirectory() as folder:
        measure(options, built(LOOP, Path(folder)), paths)
        if not options.json:
            print("\nnanoseconds added per call (4 KB, cached; median of 20,000)")
            print(calls_table(built(CALLS, Path(folder)), Path(folder)))


def built(source: Path, folder: Path) -> Path:
    """The program of a C file."""
    program = folder / source.stem
    subprocess.run(["cc", "-O2", "-o", program, source], check=True)
    return program


def calls_table(program: Path, folder: Path) -> str:
    """The cost of the library for each kind of call, with RWF_NOWAIT and without."""
    file, spool = folder / "4k", folder / "spool"
    file.write_bytes(bytes(4096))
    spool.mkdir()
    captured = preload.environment(spool, {}, hooks=False)
    alone, fast, slow = (
        calls(program, file, more)
        for more in ({}, captured, {**captured, "IOPROF_CAPTURE_NOWAIT": "off"})
    )
    return "\n".join(
        f"{name:<34} {fast[name] - took:6d}   without RWF_NOWAIT {slow[name] - took:6d}"
        for name, took in alone.items()
    )


def calls(program: Path, file: Path, environment: dict[str, str]) -> dict[str, int]:
    """Nanoseconds of each kind of call."""
    line, changed = [program, file, "20000"], {**os.environ, **environment}
    output = subprocess.run(line, env=changed, capture_output=True, text=True, check=True).stdout
    return {
        name: int(took) for name, took in (line.rsplit(maxsplit=1) for line in output.splitlines())
    }


def measure(options: argparse.Namespace, program: Path, paths: list[str]) -> None:
    """Measure and print."""
    repeats = [one_repeat(program, paths, options.dftracer) for _ in range(options.repeats)]
    result = {
        "files": len(paths),
        "alone_us": spread([repeat["alone"].directly_us for repeat in repeats]),
        **{f"{tool}_adds_us": added(tool, repeats) for tool in repeats[0] if tool != "alone"},
        "bytes_per_access": bytes_per_access(program, paths),
    }
    if "dftracer" in repeats[0]:
        result["dftracer_over_ioprof"] = (
            result["dftracer_adds_us"]["median"] / result["ioprof_adds_us"]["median"]
        )
    print(json.dumps(result, indent=1) if options.json else table(result))


def parse() -> argparse.Namespace:
    sample, dftracer = os.environ.get("IOPROF_IMAGENET_SAMPLE"), os.environ.get("DFTRACER_VENV")
    parser = argparse.ArgumentParser(description="What capture adds to reading one small file.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument(
        "--sample", type=Path, default=Path(sample) if sample else None, help="a tree of images"
    )
    parser.add_argument(
        "--dftracer",
        type=Path,
        default=Path(dftracer) if dftracer else None,
        help="a virtual environment with dftracer",
    )
    return parser.parse_args()


def one_repeat(program: Path, paths: list[str], dftracer: Path | None) -> dict[str, Access]:
    """By tool."""
    with tempfile.TemporaryDirectory() as folder:
        environments = {"alone": {}, "ioprof": preload.environment(Path(folder), {}, hooks=False)}
        if dftracer is not None and (
            library := next(dftracer.rglob("libdftracer_preload.so"), None)
        ):
            environments["dftracer"] = {
                "LD_PRELOAD": str(library),
                "DFTRACER_ENABLE": "1",
                "DFTRACER_INIT": "PRELOAD",
                "DFTRACER_INC_METADATA": "1",
                "DFTRACER_LOG_FILE": f"{folder}/dftracer",
                "DFTRACER_DATA_DIR": "all",
            }
        return {
            tool: loop(program, paths, environment) for tool, environment in environments.items()
        }


def loop(program: Path, paths: list[str], environment: dict[str, str]) -> Access:
    """Of one process."""
    ended = subprocess.run(
        [program, str(PASSES)],
        input="\n".join(paths),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    directly, through_library = (float(mean) / 1e3 for mean in ended.stdout.split()[-2:])
    return Access(directly, through_library - directly)


def bytes_per_access(program: Path, paths: list[str]) -> float:
    """Bytes of spans.parquet and files.parquet of a job that makes `PASSES` passes over the files:
    a path is stored once.
    """
    with tempfile.TemporaryDirectory() as folder:
        spool, out = Path(folder, "spool"), Path(folder, "run")
        spool.mkdir()
        out.mkdir()
        loop(program, paths, preload.environment(spool, {}, hooks=False))
        make_run_folder(spool, out, RunRecord(name="cost"))
        size = sum((out / name).stat().st_size for name in ("spans.parquet", "files.parquet"))
        return size / (len(paths) * PASSES)


def added(tool: str, repeats: list[dict[str, Access]]) -> dict[str, float]:
    """Additional microseconds relative to no tool, in the same repeat."""
    return spread([repeat[tool].longer_us - repeat["alone"].longer_us for repeat in repeats])


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def table(result: dict[str, Any]) -> str:
    rows = [(name, value) for name, value in result.items() if isinstance(value, dict)]
    lines = [
        f"{name:<20} {value['median']:8.3f}   ({value['min']:.3f}-{value['max']:.3f})"
        for name, value in rows
    ]
    rest = [
        f"{name:<20} {value:8.2f}" for name, value in result.items() if isinstance(value, float)
    ]
    return "\n".join(
        [f"{result['files']} files, open-fstat-read-read-close, microseconds each", *lines, *rest]
    )


if __name__ == "__main__":
    main()
