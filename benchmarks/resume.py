"""A job killed at 20 random instants and resumed each time, against the same job undisturbed: are
the weights the same bit for bit?

    python benchmarks/resume.py [KILLS] [RANKS]

The job is `ioprof run` on the CPU with a checkpoint every three steps; see
tests/programs/resume_killed.py.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import ioprof

PROGRAM = Path(__file__).parents[1] / "tests" / "programs" / "resume_killed.py"


def main() -> int:
    kills, ranks = (int(word) for word in [*sys.argv[1:], *("20", "2")[len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory(prefix="ioprof-resume-") as folder:
        ioprof.convert("synthetic:120", f"{folder}/data", workers=1)
        command = [
            sys.executable,
            PROGRAM,
            f"{folder}/data",
            folder,
            str(kills),
            "0",
            str(ranks),
            str(6 * kills + 12),
        ]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
