"""How often a slow-down is found in a history of runs, and how often one is found that is none.

    python benchmarks/history.py [--real 20] [--table benchmarks/results/history.md]

Simulated: 4,000 histories for each variation from run to run and each number of runs before, whose
times are log-normal. Real (`--real N`): N pairs of recorded jobs, of which the steps of one take
3 % longer, in random order, so that the machine's drift is in both; histories are drawn from them.
"""

import argparse
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from result_files import write_result

from ioprof.analysis.regression import FALSE_ALARMS, FEWEST_RUNS, level_changes
from ioprof.report.run import Run
from ioprof.store.runs import time_of

HISTORIES = 4000
SLOWER = 1.03
VARIATIONS = (0.002, 0.005, 0.008, 0.01, 0.015, 0.02)
BEFORE = (FEWEST_RUNS, 10, 20)
NEWEST = len(FALSE_ALARMS)
STEP_S, STEPS = 0.02, 120
JOB = f"""
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
slower = float(sys.argv[1])
class Samples(Dataset):
    def __len__(self): return 8 * {STEPS}
    def __getitem__(self, i): return torch.ones(64) * i
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for batch in DataLoader(Samples(), 8, num_workers=1):
    time.sleep({STEP_S} * slower)
    optimizer.zero_grad(); model(batch).mean().backward(); optimizer.step()
"""


def times(draw: random.Random, before: int, variation: float, ratio: float) -> list[float]:
    """Of the runs before, and of the newest."""
    return [
        math.exp(draw.gauss(0, variation)) * (ratio if place >= before else 1)
        for place in range(before + NEWEST)
    ]


def found_slower(seconds: list[float], before: int) -> bool:
    """Whether a slow-down is found from the first of the newest runs on, or one later."""
    return any(each.at >= before and each.ratio > 1 for each in level_changes(seconds))


def simulated() -> Iterator[str]:
    """The rows of the table."""
    for variation in VARIATIONS:
        for before in BEFORE:
            draw = random.Random(1)
            detected = sum(
                found_slower(times(draw, before, variation, SLOWER), before)
                for _ in range(HISTORIES)
            )
            checks = [level_changes(times(draw, before, variation, 1.0)) for _ in range(HISTORIES)]
            alarms = sum(
                any(each.at == before and each.ratio > 1 for each in found) for found in checks
            )
            yield (
                f"| {variation:.1%} | {before} | {detected / HISTORIES:.1%} |"
                f" {alarms / HISTORIES:.2%} |"
            )


def long_histories() -> Iterator[str]:
    """False alarms in histories of 100 runs, per run."""
    draw, histories, length = random.Random(2), 400, 100
    alarms = sum(
        sum(each.ratio > 1 for each in level_changes(times(draw, length, 0.01, 1.0)))
        for _ in range(histories)
    )
    yield (
        f"In {histories} histories of {length + NEWEST} runs without a change:"
        f" {alarms / histories / length:.2%} slow-downs per run."
    )


def recorded_s(script: Path, out: Path, slower: float) -> float:
    """The time per sample of one recorded run."""
    record = [sys.executable, "-m", "ioprof", "record", "--quiet", "--no-stacks", "--out", out]
    subprocess.run(
        [*record, "--", sys.executable, script, str(slower)], check=True, capture_output=True
    )
    seconds, _ = time_of(Run.load(out).summary)
    assert seconds
    return seconds


def real(pairs: int) -> Iterator[str]:
    """A table of histories that are drawn from real runs."""
    draw = random.Random(3)
    taken: dict[float, list[float]] = {1.0: [], SLOWER: []}
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "train.py"
        script.write_text(JOB)
        for pair in range(pairs):
            for factor in draw.sample(list(taken), 2):
                out = Path(name) / f"run-{pair}-{factor}"
                taken[factor].append(recorded_s(script, out, factor))
            print(f"pair {pair + 1}: {taken[SLOWER][-1] / taken[1.0][-1] - 1:+.2%}", flush=True)
    variation = statistics.stdev(map(math.log, taken[1.0]))
    true = statistics.fmean(taken[SLOWER]) / statistics.fmean(taken[1.0]) - 1
    yield (
        f"Real: {pairs} pairs of recorded jobs, {STEPS} steps of {STEP_S * 1e3:g} ms, the"
        " second of each pair with steps that are made 3 % longer. The runs vary by"
        f" {variation:.2%}; the"
        f" second ones took {true:+.2%} longer. {HISTORIES:,} histories of them, drawn without"
        " repetition:"
    )
    yield ""
    yield "| runs before | 3 % found in three runs | false alarms |"
    yield "|---:|---:|---:|"
    for before in BEFORE:
        if before + NEWEST > pairs:
            continue
        detected = alarms = 0
        for _ in range(HISTORIES):
            own = draw.sample(taken[1.0], before + NEWEST)
            slower = draw.sample(taken[SLOWER], NEWEST)
            detected += found_slower([*own[:before], *slower], before)
            alarms += any(each.at == before and each.ratio > 1 for each in level_changes(own))
        yield f"| {before} | {detected / HISTORIES:.1%} | {alarms / HISTORIES:.2%} |"


def main() -> None:
    """Print the tables, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", type=int, default=0, help="pairs of real runs")
    parser.add_argument("--table", type=Path, help="a table in Markdown to write")
    options = parser.parse_args()
    real_words = f" --real {options.real}" if options.real else ""
    lines = [
        "# A slow-down of 3 % in a history of runs",
        "",
        f"`python benchmarks/history.py{real_words}`. A change is found within the three newest"
        " runs, or not.",
        "",
        f"Simulated, {HISTORIES:,} histories per row:",
        "",
        "| variation from run to run | runs before | 3 % found in three runs | false alarms |",
        "|---:|---:|---:|---:|",
        *simulated(),
        "",
        *long_histories(),
    ]
    if options.real:
        lines += ["", *real(options.real)]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.table:
        write_result(options.table, text)


if __name__ == "__main__":
    main()
