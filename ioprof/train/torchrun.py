"""torchrun, except that no process of it outlives ioprof: `python -m ioprof.train.torchrun PID OPTIONS`, PID being that of ioprof.

The program that it starts for each rank gets one more argument: the process id of this launcher, for the same purpose.
"""

import os
import signal
import sys

from ioprof.process import die_with_parent


def main() -> None:
    """Ask to die with ioprof before torch is loaded, which takes seconds; then be torchrun."""
    die_with_parent(signal.SIGTERM, parent=int(sys.argv[1]))
    from torch.distributed.run import main as torchrun

    torchrun([*sys.argv[2:], str(os.getpid())])


if __name__ == "__main__":
    main()
