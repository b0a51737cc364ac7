"""How well the two ceilings predict the step of each job of the fault suite, and what they leave.

    python benchmarks/faults.py --runs 1 --keep FOLDER
    python benchmarks/ceilings.py FOLDER [--table benchmarks/results/ceilings.md]

A step is predicted if the longer of the two ceilings (their sum without workers) is within 5 % of
it. Else the parts of what is left are named. One of them is what remains when all others are taken
away, "variation": the ceilings are of the mean batch and the mean step, and the loop waits where a
batch takes longer than the mean. A replay of the run has the time of each batch and each step, and
so this variation: where it reproduces the step within 5 %, variation is what was left. A run that
cannot be replayed says why.

Jobs without a loader, and jobs of whose loader no work was recorded, have no ceilings.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Final

from result_files import write_result

from ioprof.analysis.ceilings import RESIDUALS
from ioprof.format.run_record import Summary

CLOSE: Final = 0.05
"""Of a step."""
LEAST_SHOWN: Final = 0.01
PREDICTED, NAMED, CONFIRMED, UNKNOWN, NONE = (
    "predicted",
    "named",
    "variation, as replayed",
    "not confirmed",
    "no ceilings",
)


def judged(summary: Summary) -> tuple[str, str]:
    """What is known of the step of a run, and the row of the table."""
    found = summary.ceilings
    if found is None:
        return NONE, "| | | | | |"
    off = found.residual_s / found.step_s
    parts = {part.name: part.seconds / found.step_s for part in found.residuals}
    replay = summary.replay
    error = replay.baseline_error if replay else None
    if abs(off) <= CLOSE:
        judgement = PREDICTED
    elif off > 0 and parts.get(RESIDUALS[-1], 0.0) <= CLOSE:
        judgement = NAMED
    else:
        judgement = CONFIRMED if error is not None and abs(error) <= CLOSE else UNKNOWN
    shown = ", ".join(
        f"{name} {share:.1%}"
        for name, share in parts.items()
        if share >= LEAST_SHOWN and abs(off) > CLOSE
    )
    of_replay = f"{error:+.1%}" if error is not None else (replay.reason or "" if replay else "")
    supply = (
        f"{found.supply_s * 1e3:.1f} /"
        f" {found.consumer_s * 1e3:.1f}{' in turn' if found.is_serial else ''}"
    )
    return (
        judgement,
        (
            f"| {found.step_s * 1e3:.1f} | {supply} | {off:+.1%} | {shown} |"
            f" {of_replay.replace('|', '/')} |"
        ),
    )


def main() -> None:
    """Print the table, and count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="what `faults.py --keep` kept")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, counts = list[str](), Counter[str]()
    for path in sorted(options.folder.rglob("*.json")):
        judgement, row = judged(Summary.from_json(path.read_text()))
        counts[judgement] += 1
        rows.append(f"| {path.parent.name} | {judgement} {row}")
    said = ", ".join(
        f"{counts[each]} {each}" for each in (PREDICTED, NAMED, CONFIRMED, UNKNOWN, NONE)
    )
    if options.json:
        print(json.dumps(counts, indent=1))
    head = (
        "| case | step | ms | workers / loop, ms | left, of a step | by name | replayed"
        f" |\n{'| --- ' * 7}|"
    )
    table = "\n".join([f"{len(rows)} runs: {said}.", "", head, *rows, ""])
    if options.table:
        title = "# The two ceilings of the jobs of the fault suite"
        write_result(options.table, f"{title}\n\n{table}")
    elif not options.json:
        print(table)


if __name__ == "__main__":
    main()
