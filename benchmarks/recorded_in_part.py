"""Runs a command with one part of the recording; `job_cost.py --parts` uses it to measure the cost
of each part.

python benchmarks/recorded_in_part.py hooks|library|faults|samples SPOOL COMMAND...
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ioprof.instrument import preload
from ioprof.instrument.faults import FaultRecorder
from ioprof.instrument.samplers import Sampler


def main() -> None:
    part, spool, command = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    if part in ("hooks", "library"):
        environment = preload.environment(spool, os.environ, hooks=part == "hooks")
        if part == "hooks":
            del environment["LD_PRELOAD"]
        os.execvpe(command[0], command, environment)
    with {"faults": recording_faults, "samples": sampling}[part](spool):
        ended = subprocess.run(command, check=False)
    sys.exit(ended.returncode)


@contextmanager
def recording_faults(spool: Path) -> Iterator[None]:
    faults = FaultRecorder(spool)
    try:
        yield
    finally:
        faults.stop()


@contextmanager
def sampling(spool: Path) -> Iterator[None]:
    with Sampler(str(spool)):
        yield


if __name__ == "__main__":
    main()
