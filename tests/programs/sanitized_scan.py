"""Reads damaged Kineto files by ioprof._scan, built with sanitizers, and by the parser in Python, and compares what they find.

python sanitized_scan.py SCAN_SO FOLDER CASES SEED

FOLDER is written to. The last line of standard error is the number of the case.
"""

import importlib.machinery
import importlib.util
import random
import sys
import time
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[1]))

from damaged_kineto import check_case, check_places, damaged

from ioprof.ingest.kineto import events


def loaded(name: str, path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def main(scan_path: str, folder: str, cases: str, seed: str) -> None:
    scan = loaded("_scan", scan_path)
    events._native = scan
    slowest = (0.0, 0)
    for number in range(int(cases)):
        print(number, file=sys.stderr)
        chance = random.Random(f"{seed} {number}")
        began = time.monotonic()
        check_case(chance, Path(folder, "damaged.json"))
        check_places(damaged(chance), scan.KinetoScanner, chance)
        slowest = max(slowest, (time.monotonic() - began, number))
    print(f"slowest: {slowest[0]:.2f} s, case {slowest[1]}", file=sys.stderr)
    print("done")


main(*sys.argv[1:])
