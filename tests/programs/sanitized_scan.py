"""Reads damaged files of Kineto, DFTracer and Darshan by ioprof._scan, built with sanitizers, and
in Python, and compares both.

python sanitized_scan.py SCAN_SO FOLDER CASES SEED

FOLDER is written to. The last line of standard error is the number of the case.
"""

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import damaged_darshan
import damaged_dftracer
import damaged_kineto
from extension import loaded

from ioprof.ingest.kineto import events
from ioprof.interchange import darshan_reads, dftracer_events


def main(scan_path: str, folder: str, cases: str, seed: str) -> None:
    scan = loaded("_scan", scan_path)
    events._scan = dftracer_events._scan = darshan_reads._scan = scan
    slowest = (0.0, 0)
    for number in range(int(cases)):
        print(number, file=sys.stderr)
        chance = random.Random(f"{seed} {number}")
        began = time.monotonic()
        damaged_kineto.check_case(chance, Path(folder, "damaged.json"))
        damaged_kineto.check_places(damaged_kineto.damaged(chance), scan.KinetoScanner, chance)
        damaged_dftracer.check_case(chance, Path(folder, "damaged.pfw"))
        lines = damaged_dftracer.damaged(chance, damaged_dftracer.WHOLE, damaged_dftracer.PARTS)
        damaged_dftracer.check_places(lines, scan.DFTracerScanner, chance)
        for _ in range(5):
            damaged_darshan.check_case(chance)
        slowest = max(slowest, (time.monotonic() - began, number))
    print(f"slowest: {slowest[0]:.2f} s, case {slowest[1]}", file=sys.stderr)
    print("done")


main(*sys.argv[1:])
