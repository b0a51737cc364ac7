"""What one span costs: with the extension, with the Python twin, and when nothing is recorded.

    python benchmarks/span_cost.py [--json] [--repeats 9] [--folder DIR]

The loop is `with span("decode"): pass`; what the same loop takes without a span, measured beside it in every repeat, is subtracted.
The limit is what no recorder of this kind can be below: two readings of the clock, and a context manager in C that does nothing.

What did not work, measured on a virtual machine with 2 cores (page faults are dear there):

- Faulting in a whole chunk at once (MADV_POPULATE_WRITE): on ext4 57 instead of 73 ns per slot, on tmpfs 33 instead of 36, but one
  span in 1,169 then waits 65 µs instead of sixteen that wait 5 µs each, and a thread of one span dirties 64 KiB. Left out.
- Writing zeros instead of fallocate, to have the pages dirty already: 170 ns per slot on ext4, twice the whole cost.
- Methods on the object that stands for "off": binding them costs two allocations, 65 ns instead of 25. They are plain functions in
  the type's dict now. The same for a real span needs an object that is its own bound method; not worth the reading.

Most of what is above the limit is the kernel's: a page fault every 73 spans. It depends on the file system of the spool, so that
`--folder` may matter more than the code.
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

from ioprof.record import recorder
from ioprof.record.span import span

SPANS = {"extension": 500_000, "twin": 20_000, "off": 1_000_000, "limit": 500_000}


def main() -> None:
    options = parse()
    names = [name for name in SPANS if name != "extension" or recorder.uses_native()]
    repeats = [{name: one_repeat(name, options.folder, SPANS[name]) for name in names} for _ in range(options.repeats)]
    results = {name: spread([repeat[name] for repeat in repeats]) for name in names}
    if options.json:
        print(json.dumps({"machine": machine(), "repeats": options.repeats, "ns_per_span": results}, indent=1))
        return
    print(f"{machine()}; nanoseconds per span, median of {options.repeats} repeats (min-max)\n")
    for name, result in results.items():
        print(f"{name:<10} {result['median']:8.1f}   ({result['min']:.1f}-{result['max']:.1f})")
    if "extension" not in results:
        print("extension: not built (no C compiler)")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What one span costs.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", type=Path, default=None, help="where capture files are written (default: TMPDIR)")
    return parser.parse_args()


def spread(costs: list[float]) -> dict[str, float]:
    return {"median": statistics.median(costs), "min": min(costs), "max": max(costs)}


def one_repeat(name: str, folder: Path | None, spans: int) -> float:
    """Nanoseconds per span, in a file of its own that is removed again."""
    bare = bare_loop(spans)
    if name == "limit":
        return (limit_loop(span("off"), spans) - bare) / spans
    if name == "off":
        return (span_loop(span, spans) - bare) / spans
    with tempfile.TemporaryDirectory(dir=folder) as spool:
        recorder.start(Path(spool), native=name == "extension")
        try:
            return (span_loop(span, spans) - bare) / spans
        finally:
            recorder.stop()


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
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    cpu = names[0] if names else platform.machine()
    return f"{cpu}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
