"""What recording a GPU costs a loop that does little but launch small kernels, and what
torch.profiler alone costs it.

    python benchmarks/gpu_launches.py [--seconds 12]

The loop trains 8 linear layers in batches of 256. It runs without a recording, with one that has no
window, with one whose window is its first 2 s, the same with TEARDOWN_CUPTI=1, and with
torch.profiler from its fourth to its sixth second. A row has the median step of each second in ms.
The first run is repeated at the end, which shows how much the machine changes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset

_PROFILED_S: Final = (4.0, 6.0)
_RECORD: Final = (sys.executable, "-m", "ioprof", "record", "--quiet")
RUNS: Final[tuple[tuple[str, tuple[str, ...], dict[str, str]], ...]] = (
    ("without ioprof", (), {}),
    ("no window", (*_RECORD, "--gpu-window", "off"), {}),
    ("a window", (*_RECORD, "--gpu-window", "2s/60s"), {}),
    ("a window, TEARDOWN_CUPTI=1", (*_RECORD, "--gpu-window", "2s/60s"), {"TEARDOWN_CUPTI": "1"}),
    ("torch.profiler alone", (), {"PROFILE": "1"}),
    ("without ioprof", (), {}),
)


class Rows(Dataset[torch.Tensor]):
    """Batches that are in memory already, without an end."""

    def __init__(self) -> None:
        self.batches = torch.randint(0, 255, (8, 256, 64), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.batches[number % len(self.batches)]


def job(seconds: float) -> None:
    """Train for that long, and print the median step of each second."""
    hidden = [part for _ in range(8) for part in (torch.nn.Linear(4096, 4096), torch.nn.ReLU())]
    model = torch.nn.Sequential(torch.nn.Linear(64, 4096), *hidden, torch.nn.Linear(4096, 10)).to(
        "cuda", torch.bfloat16
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    profiler: Any = (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        if "PROFILE" in os.environ
        else None
    )
    by_second: dict[int, list[float]] = {}
    begin_s = before_s = time.perf_counter()
    is_profiled = was_profiled = False
    for number, batch in enumerate(
        DataLoader(Rows(), batch_size=None, num_workers=2, pin_memory=True)
    ):
        loss = (
            model(batch.to("cuda", non_blocking=True).to(torch.bfloat16) / 255)
            .float()
            .square()
            .mean()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 50 == 0:
            torch.cuda.synchronize()
        now_s = time.perf_counter()
        by_second.setdefault(int(now_s - begin_s), []).append(now_s - before_s)
        before_s = now_s
        if profiler and not was_profiled and now_s - begin_s > _PROFILED_S[is_profiled]:
            (profiler.stop if is_profiled else profiler.start)()
            is_profiled, was_profiled = not is_profiled, is_profiled
        if now_s - begin_s > seconds:
            break
    print(
        " ".join(f"{1e3 * statistics.median(times):.2f}" for _, times in sorted(by_second.items()))
    )


def main() -> None:
    """Run the loop in each way, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="of each run")
    parser.add_argument(
        "--job", action="store_true", help="only the loop, as it is run in each way"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_launches.py needs a GPU")
        return
    if options.job:
        job(options.seconds)
        return
    print(f"{torch.cuda.get_device_name()}; median step of each second, ms", flush=True)
    for number, (name, command, environment) in enumerate(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            out = ("--out", f"{folder}/{number}", "--") if command else ()
            program = (sys.executable, __file__, "--job", "--seconds", str(options.seconds))
            ended = subprocess.run(
                [*command, *out, *program],
                env=os.environ | environment,
                check=True,
                capture_output=True,
                text=True,
            )
        print(f"{name:28} {ended.stdout.strip().splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
