"""Files of benchmarks/results/ that a program writes, and people add remarks to."""

from pathlib import Path
from typing import Final

REMARKS: Final = "\n## Remarks (by hand)\n"
"""What stands from here on in a file is kept."""


def write_result(path: Path, text: str) -> None:
    """Replace what the program wrote before."""
    old = path.read_text() if path.exists() else ""
    _, heading, remarks = old.partition(REMARKS)
    path.write_text(text.rstrip("\n") + "\n" + heading + remarks)
