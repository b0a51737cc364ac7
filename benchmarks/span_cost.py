"""The cost of one span: with the extension, with the Python writer, and when nothing is recorded.

    python benchmarks/span_cost.py [--json] [--repeats 9] [--folder DIR]

The loop is `with span("decode"): pass`; the time of the same loop without a span, measured in every
repeat, is subtracted. The lower limit of such a recorder is two clock readings and an empty context
manager in C.

What did not work, measured on a virtual machine with 2 cores (page faults are expensive there):

- Faulting in a whole chunk at once (MADV_POPULATE_WRITE): on ext4 57 instead of 73 ns per slot, on
  tmpfs 33 instead of 36, but then one span in 1,169 waits 65 µs instead of sixteen that wait 5 µs
  each, and a thread with one span dirties 64 KiB. Not used.
- Writing zeros instead of fallocate, to have dirty pages: 170 ns per slot on ext4, twice the total
  cost.
- Methods on the object for "not recording": binding them costs two allocations, 65 ns instead of
  25. They are plain functions in the dict of the type now. The same for a real span would need an
  object that is its own bound method, which is hard to read.

Most of the cost above the limit is in the kernel: a page fault every 73 spans. It depends on the
file system of the spool, so `--folder` may have more effect than the code.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ioprof.instrument import recorder
from ioprof.instrument.span import span

SPANS = {"extension": 500_000, "twin": 20_000, "off": 1_000_000, "limit": 500_000}


def main() -> None:
    options = parse()
    repeats = [
        {name: one_repeat(name, options.folder, spans) for name, spans in SPANS.items()}
        for _ in range(options.repeats)
    ]
    results = {name: spread([repeat[name] for repeat in repeats]) for name in SPANS}
    if options.json:
        print(
            json.dumps(
                {"machine": machine(), "repeats": options.repeats, "ns_per_span": results}, indent=1
            )
        )
        return
    print(f"{machine()}; nanoseconds per span, median of {options.repeats} repeats (min-max)\n")
    for name, result in results.items():
        print(f"{name:<10} {result['median']:8.1f}   ({result['min']:.1f}-{result['max']:.1f})")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What one span costs.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="where capture files are written (default: TMPDIR)",
    )
    return parser.parse_args()


def spread(costs: list[float]) -> dict[str, float]:
    return {"median": statistics.median(costs), "min": min(costs), "max": max(costs)}


def one_repeat(name: str, folder: Path | None, spans: int) -> float:
    """Nanoseconds per span, with a temporary file."""
    bare = bare_loop(spans)
    if name == "limit":
        return (limit_loop(span("off"), spans) - bare) / spans
    if name == "off":
        return (span_loop(span, spans) - bare) / spans
    with tempfile.TemporaryDirectory(dir=folder) as spool:
        extension = recorder._native  # noqa: SLF001 - which writes where it can be loaded
        recorder._native = extension if name == "extension" else None  # noqa: SLF001
        recorder.start(Path(spool))
        try:
            return (span_loop(span, spans) - bare) / spans
        finally:
            recorder.stop()
            recorder._native = extension  # noqa: SLF001


def span_loop(open_span: Callable[[str], Any], spans: int) -> int:
    start_ns = time.monotonic_ns()
    for _ in range(spans):
        with open_span("decode"):
            pass
    return time.monotonic_ns() - start_ns


def limit_loop(nothing: Any, spans: int) -> int:
    clock = time.monotonic_ns
    start_ns = clock()
    for _ in range(spans):
        with nothing:
            clock()
            clock()
    return clock() - start_ns


def bare_loop(spans: int) -> int:
    start_ns = time.monotonic_ns()
    for _ in range(spans):
        pass
    return time.monotonic_ns() - start_ns


def machine() -> str:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    cpu = names[0] if names else platform.machine()
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, Python"
        f" {platform.python_version()}"
    )


if __name__ == "__main__":
    main()
