"""Who woke whom: how much of the blocked time has a waker, how much of that the kernel agrees with,
and what calls cost that wait for nothing.

    python benchmarks/wakers.py [--table FILE]

Loops that wait for torch's loader, pools, asyncio, joblib and a manager run under the capture
library alone (`tests/programs/wait_for_others.py`). Their blocks are compared with the scheduler's
events (`sched_waking`), which need root. The calls are timed in turn with the library and without
it (lock_cost.c), as the medians of seven runs.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import polars as pl  # noqa: E402
from kernel_wakings import (  # noqa: E402
    KINDS,
    NoTracerError,
    known_ratio,
    last_wakers,
    right_ratio,
    traced_wakings,
)
from preload import captured, environment, run_python  # noqa: E402

ROUNDS: Final = 7


def wakers(folder: Path) -> str:
    """The table of the loops."""
    head = (
        "| loop waits for | its blocked time with a waker | of all threads', as the kernel says |"
    )
    lines = [head, "|---|---:|---:|"]
    tids = dict[str, int]()
    try:
        with traced_wakings(folder / "tracing") as tracing:
            for kind in KINDS:
                tids[kind] = int(run_python(folder / kind, "wait_for_others.py", kind))
            seen = last_wakers(tracing)
    except NoTracerError as error:
        sys.exit(str(error))
    for kind, tid in tids.items():
        trace = captured(folder / kind)
        known = known_ratio(trace.blocks.filter(pl.col("tid") == tid))
        lines.append(f"| {kind} | {known:.1%} | {right_ratio(trace, seen):.1%} |")
    return "\n".join(lines)


def calls(folder: Path) -> str:
    """The table of the calls, in nanoseconds."""
    program = folder / "lock_cost"
    source = Path(__file__).with_name("lock_cost.c")
    subprocess.run(["cc", "-O2", "-pthread", "-o", program, source], check=True)
    took: dict[tuple[str, bool], list[float]] = {}
    for number in range(ROUNDS):
        for with_library in (False, True):
            spool = folder / f"calls{number}"
            known = environment(spool) if with_library else None
            said = subprocess.run(
                [program], env=known, capture_output=True, text=True, check=True
            ).stdout
            for line in said.splitlines():
                name, _, value = line.rpartition(",")
                took.setdefault((name, with_library), []).append(float(value))
    lines = ["| call | alone (ns) | recorded (ns) |", "|---|---:|---:|"]
    for name in dict.fromkeys(name for name, _ in took):
        alone, recorded = (statistics.median(took[name, each]) for each in (False, True))
        lines.append(f"| {name} | {alone:.1f} | {recorded:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ioprof-wakers-") as folder:
        text = f"# Who woke whom\n\n{wakers(Path(folder))}\n\n{calls(Path(folder))}\n"
    print(text)
    if options.table:
        options.table.write_text(text)


if __name__ == "__main__":
    main()
