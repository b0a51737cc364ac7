"""What sampling costs the launcher: CPU time of the sampling thread per second, with so many
processes of so many threads each.

    python benchmarks/sampler_cost.py [--json] [--seconds 10] [--processes 1 16 128] [--threads 4]

The processes wake up ten times per second, so that their series change in every sample. The kernel
counts the CPU time of the thread, which hardly depends on other load of the machine. The bar is 0.5
% of a core with 16 processes of 4 threads.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time

from ioprof.instrument.samplers import Sampler

PROCESS = """
import sys, threading, time
def work():
    while True:
        time.sleep(0.1)
for _ in range(int(sys.argv[1]) - 1):
    threading.Thread(target=work, daemon=True).start()
print(flush=True)
work()
"""


def measured(num_processes: int, num_threads: int, seconds: float) -> dict[str, float]:
    """The cost, as a share of one core, and the longest period between two samples."""
    line = [sys.executable, "-S", "-c", PROCESS, str(num_threads)]
    processes = [subprocess.Popen(line, stdout=subprocess.PIPE) for _ in range(num_processes)]
    try:
        for process in processes:
            assert process.stdout
            process.stdout.readline()
        with tempfile.TemporaryDirectory(prefix="ioprof-") as spool, Sampler(spool) as sampler:
            time.sleep(2.5)  # the first sample examines every process of the host
            before = sampler.facts()
            time.sleep(seconds)
            after = sampler.facts()
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()
    share = (after["cpu_s"] - before["cpu_s"]) / (after["wall_s"] - before["wall_s"])
    return {
        "cost_ratio": share,
        "samples": after["samples"] - before["samples"],
        "longest_period_s": after["longest_period_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=[4])
    options = parser.parse_args()
    for num_processes in options.processes:
        for num_threads in options.threads:
            found = measured(num_processes, num_threads, options.seconds)
            if options.json:
                print(
                    json.dumps({"processes": num_processes, "threads": num_threads, **found}),
                    flush=True,
                )
            else:
                every = (
                    f"{found['samples']} samples, longest period {found['longest_period_s']:.1f} s"
                )
                print(
                    f"{num_processes} × {num_threads} threads: {found['cost_ratio']:.2%} of a core;"
                    f" {every}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
