"""What `ioprof record` adds before and after a job of seconds, and what a report of it takes.

    python benchmarks/last_second.py [--turns 10] [--seconds 3] [PYTHON ...]     absolute paths

Each PYTHON is an interpreter that has a version of ioprof installed (default: this one). They and
the bare job take turns, so that a busy machine is the same for all. Medians; CPU time is what to
compare on a busy machine.

    start     from the start of `ioprof record` to that of the job, less that of the bare job
    answer    from the end of the job to the headline on the terminal
    all       from the end of the job to the end of `ioprof record`
    CPU       user and system time of ioprof and the job, less that of the bare job
    report    `ioprof report RUN`
    import    `import ioprof` in a process that has done nothing else

Targets: start 0.3 s, answer 1 s, all 0.8 s, report 0.7 s, import 5 ms.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

JOB: Final = """
import os, sys, time
start = time.monotonic()
import torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 1 << 30
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(64)
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Slow(), batch_size=4, num_workers=1):
    model(batch).square().mean().backward()
    optimizer.step()
    if time.monotonic() - start > float(sys.argv[1]): break
print("times", start, time.monotonic(), flush=True)
"""
NAMES: Final = ("start", "answer", "all", "CPU", "report", "import")


def main() -> None:
    """Measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {python: [] for python in options.pythons}
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.py"
        job.write_text(JOB)
        for turn in range(options.turns + 1):
            for python in options.pythons:
                bare = ended([python, str(job), str(options.seconds)])
                out = Path(folder) / f"run-{options.pythons.index(python)}-{turn}"
                times = one(python, job, out, options.seconds, bare)
                if turn:  # the first one fills the page cache
                    found[python].append(times)
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.turns} turns; seconds"
    )
    print(" ".join(f"{name:>8}" for name in NAMES))
    for python, runs in found.items():
        medians = (statistics.median(run[name] for run in runs) for name in NAMES)
        print(" ".join(f"{value:8.3f}" for value in medians), python)


def one(
    python: str, job: Path, out: Path, seconds: float, bare: dict[str, float]
) -> dict[str, float]:
    """One recorded job, and a report of it."""
    line = [python, "-m", "ioprof", "record", "--out", str(out), "--"]
    recorded = ended([*line, python, str(job), str(seconds)])
    report = ended([python, "-m", "ioprof", "report", str(out)])
    imported = subprocess.run(
        [python, "-c", "import time; t = time.perf_counter(); import ioprof;"
         " print(time.perf_counter() - t)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {
        "start": recorded["begun"] - bare["begun"],
        "answer": recorded["answered"],
        "all": recorded["after"],
        "CPU": recorded["cpu"] - bare["cpu"],
        "report": report["wall"],
        "import": float(imported.stdout),
    }


def ended(line: list[str]) -> dict[str, float]:
    """Run a command, and when what it says was there."""
    before, start, said, answered = os.times(), time.monotonic(), "", 0.0
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for text in process.stdout:
        if said and not answered and text.startswith(("Mostly", "Largest")):
            answered = time.monotonic()
        said = text if text.startswith("times") else said
    process.wait()
    end, after = time.monotonic(), os.times()
    cpu = after.children_user + after.children_system
    found = {"wall": end - start, "cpu": cpu - before.children_user - before.children_system}
    if said:
        begun, over = map(float, said.split()[1:])
        found |= {"begun": begun - start, "answered": answered - over, "after": end - over}
    return found


if __name__ == "__main__":
    main()
