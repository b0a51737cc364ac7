"""The rate of a job with the null loader relative to the rate of the emulated device.

The limit is the device: batch size / published rate per step. The loss is that of the host: copying
a batch, launching, the synchronisation of the gradient exchange. Target: 2 %. Each row is the
median of `--repeats` runs in one session, with minimum and maximum.

Notes: when the host waited for step i before launching step i + 1, each step had a gap of a wake-up
and a launch. Now a step is queued while the previous one runs, as in a CUDA stream, and there is no
gap.
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
from typing import Any


def rate_ratio(device: str, ranks: int, batch_size: int, steps: int) -> float:
    """Steady samples/s of one run, divided by the rate of the devices."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(
                sys.executable,
                "-m",
                "ioprof",
                "run",
                "--loader",
                "null",
                "--device",
                device,
                "--ranks",
                str(ranks),
            ),
            *(
                "--batch-size",
                str(batch_size),
                "--steps",
                str(steps),
                "--out",
                str(Path(folder, "run")),
                "--json",
            ),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    throughput: dict[str, Any] = json.loads(done.stdout)["throughput"]
    return float(throughput["steady_samples_per_s"]) / float(throughput["device_samples_per_s"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    print(
        f"null loader against the emulated device ({platform.machine()}, {os.cpu_count()} cores,"
        f" batch {arguments.batch_size})"
    )
    print(f"{'device':<16}{'ranks':>6}{'median':>9}{'least':>9}{'greatest':>10}   bar")
    for device in ("emulated:v100", "emulated:a100", "emulated:h100"):
        for ranks in (1, 2):
            ratios = [
                rate_ratio(device, ranks, arguments.batch_size, arguments.steps)
                for _ in range(arguments.repeats)
            ]
            median = statistics.median(ratios)
            verdict = "met" if median >= 0.98 else "MISSED"
            print(
                f"{device:<16}{ranks:>6}{median:>9.4f}{min(ratios):>9.4f}{max(ratios):>10.4f}  "
                f" 0.98 {verdict}"
            )


if __name__ == "__main__":
    main()
