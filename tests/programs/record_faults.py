"""A recorder that never stops: it records a command until it is killed. Arguments: SPOOL
COMMAND..."""

import subprocess
import sys
import time

from ioprof.instrument.faults import FaultRecorder

if __name__ == "__main__":
    recorder = FaultRecorder(sys.argv[1], period_s=0.05)
    subprocess.run(sys.argv[2:], check=True)
    time.sleep(600)
