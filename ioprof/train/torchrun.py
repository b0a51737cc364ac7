"""torchrun, except that it ends its ranks when ioprof is killed: `python -m ioprof.train.torchrun OPTIONS`."""

import signal
import sys

from torch.distributed.run import main

from ioprof.process import die_with_parent

if __name__ == "__main__":
    die_with_parent(signal.SIGTERM)
    main(sys.argv[1:])
