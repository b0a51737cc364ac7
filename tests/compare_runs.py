"""Whether two versions of ioprof say the same of recorded runs: python tests/compare_runs.py
OTHER_SOURCE RUN ...

OTHER_SOURCE is a checkout of the other version, with its libraries built. Prints a line per run;
exits with 1 if one differs.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ANALYSE: Final = """
import sys
from ioprof.report.run import Run
run = Run.load(sys.argv[1])
print(run.summary.to_json(), run.steps.hash_rows().to_list())
"""


def analysed(source: Path, run: str) -> str:
    """The summary and a hash of each step, by the ioprof in that checkout."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", ANALYSE, run]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=source
    ).stdout


def main() -> int:
    """Compare the runs."""
    other, *runs = sys.argv[1:]
    differ = [run for run in runs if analysed(ROOT, run) != analysed(Path(other), run)]
    for run in runs:
        print(f"{run}: {'differs' if run in differ else 'the same'}")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
