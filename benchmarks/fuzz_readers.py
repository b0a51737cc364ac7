"""Damages data and reads it: 10,000 cases for each form, of which none may raise another error than
ioprof's.

Forms are those of other programs, and what ioprof itself leaves: datasets, parts, and what an
interrupted conversion leaves. That one waits for the disk in each case, but not where TMPDIR is in
memory.

    python benchmarks/fuzz_readers.py [CASES [SEED [FORM ...]]]

A form whose library is not installed is left out, and said.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import pytest
from foreign_data import DATA, WRITERS, samples
from fuzzing import OWN, fuzz, read_source


def main(cases: int, seed: int, forms: list[str]) -> int:
    """Print a row per form; 1 if a case went wrong."""
    wrong = 0
    print(f"{'form':16} {'cases':>7} {'refused':>8} {'wrong':>6} {'longest s':>10} {'CPU s':>7}")
    for form in forms or [*WRITERS, "recordio", *OWN]:
        with tempfile.TemporaryDirectory() as root:
            folder, read, pattern = Path(root, "data"), read_source, "*"
            try:
                if form in OWN:
                    write, pattern = OWN[form]
                    read = write(DATA / "images", folder)
                elif form == "recordio":
                    folder = DATA / "recordio"
                else:
                    folder.mkdir()
                    WRITERS[form](folder, samples())
            except pytest.skip.Exception as missing:
                print(f"{form:16} left out: {missing}")
                continue
            began_s = time.process_time()
            found = fuzz(folder, Path(root, "work"), cases, seed, read, pattern)
            seconds = time.process_time() - began_s
        numbers = (
            f"{found.cases:7} {found.refused:8} {len(found.wrong):6} {found.longest_s:10.3f}"
            f" {seconds:7.1f}"
        )
        print(f"{form:16} {numbers}", flush=True)
        for line in found.wrong[:5]:
            print(f"  {line}")
        wrong += len(found.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:3]]
    sys.exit(main(*[*numbers, *(10_000, 0)[len(numbers) :]], sys.argv[3:]))
