"""What a training process does beside its loop, or in it: threads, pools, and losses that are no modules."""

from pathlib import Path
from typing import Final

from repository import PROGRAMS

from faults.case import Case

_LINES: Final = Path(PROGRAMS, "beside_training.py").read_text().splitlines()


def _line(mark: str) -> str:
    """`beside_training.py:57`, the line that ends with this comment."""
    return f"beside_training.py:{next(number for number, line in enumerate(_LINES, 1) if line.endswith(f'  # {mark}'))}"


CASES = (
    Case(
        name="a thread that holds the interpreter lock",
        program="beside_training.py",
        arguments=("lock", 25),
        bound_by="host",
        says=("Host-bound", "waiting for the interpreter lock", "in count_words"),
        advises="what thread metrics does",
        names=("which thread metrics held", "at most"),
    ),
)
