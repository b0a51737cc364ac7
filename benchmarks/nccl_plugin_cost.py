"""The cost of the NCCL profiler plugin for one collective, in nanoseconds and bytes; no GPU is
needed.

    python benchmarks/nccl_plugin_cost.py [--json] [--repeats 9]

The calls that NCCL 2.29 makes for a collective of 8 channels are made by nccl_events.c: 2 starts
and stops by the thread of the application, then 8 starts, updates and stops by the proxy thread,
which wait for no GPU. They write four records. Processor time is measured, of which 20 to 30 ns are
the clock that the plugin reads for each record. What NCCL itself does for its plugin, and what the
kernels do (two stores to the memory of the host per channel), is not included and needs a GPU.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from ioprof.format.collective_format import RECORD_BYTES
from ioprof.format.layout import COLLECTIVE_HEADER_DTYPE
from ioprof.ingest.collectives.files import read_collective_files
from ioprof.instrument import preload

ROUNDS = 20_000
RECORDS = 4
SOURCE = Path(__file__).with_name("nccl_events.c")
INCLUDE = Path(__file__).resolve().parents[1] / "ioprof" / "native" / "nccl"


def main() -> None:
    parser = argparse.ArgumentParser(description="What the NCCL plugin costs for one collective.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    plugin = preload.nccl_plugin()
    if plugin is None:
        print("NCCL plugin: not measured; it is not built (no C compiler)")
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        subprocess.run(
            ["cc", "-O2", "-std=gnu11", f"-I{INCLUDE}", SOURCE, "-o", program, "-ldl"], check=True
        )
        rows = [
            measured(program, plugin, Path(folder, str(number)))
            for number in range(options.repeats)
        ]
    host, proxy = (statistics.median(row[place] for row in rows) for place in (0, 1))
    found = {
        "ns_per_collective_host": host,
        "ns_per_collective_proxy": proxy,
        "ns_per_record": (host + proxy) / RECORDS,
        "bytes_per_collective": rows[0][2],
        "bytes_per_record": float(RECORD_BYTES),
    }
    if options.json:
        print(
            json.dumps(
                {
                    "machine": platform.processor() or platform.machine(),
                    "cores": os.cpu_count(),
                    **found,
                }
            )
        )
        return
    for name, value in found.items():
        print(f"{name:<26} {value:8.1f}")


def measured(program: Path, plugin: Path, spool: Path) -> tuple[float, float, float]:
    """Nanoseconds by the application and by the proxy, and bytes in the file, per collective."""
    spool.mkdir()
    ended = subprocess.run(
        [program, plugin, str(ROUNDS)],
        env={**os.environ, "IOPROF_SPOOL": str(spool)},
        capture_output=True,
        text=True,
        check=True,
    )
    host, proxy = map(float, ended.stdout.split())
    (file,) = read_collective_files(spool)
    if len(file.operations.drop_nulls("end_ns")) != ROUNDS:
        sys.exit(f"{ROUNDS - len(file.operations)} collectives were not recorded")
    num_records = int(np.fromfile(file.path, COLLECTIVE_HEADER_DTYPE, 1)["records"][0])
    return host, proxy, num_records * RECORD_BYTES / ROUNDS


if __name__ == "__main__":
    main()
