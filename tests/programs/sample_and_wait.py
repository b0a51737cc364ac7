"""Samples every 20 ms while `read_then_wait.py` runs, whose pid it says. Arguments: SPOOL FILE SIZE
COUNT."""

import os
import subprocess
import sys
from pathlib import Path

from ioprof.instrument.samplers import Sampler

spool, *rest = sys.argv[1:]
program = Path(__file__).with_name("read_then_wait.py")
with Sampler(spool, period_s=0.02):
    job = subprocess.Popen(
        [sys.executable, "-S", str(program), *rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # our own is for its pid
        env={**os.environ, "IOPROF_SPOOL": spool},
    )
    print(job.pid, flush=True)
    job.wait()
