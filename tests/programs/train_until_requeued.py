"""Trains for ever in the first attempt of a job of Slurm, and for 30 steps in later ones; a signal
USR1 is noted.

python train_until_requeued.py FOLDER      steps made so far are in FOLDER/steps-ATTEMPT-RANK
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

attempt, rank = os.environ.get("SLURM_RESTART_COUNT", "0"), os.environ.get("SLURM_PROCID", "0")
folder = Path(sys.argv[1])
signal.signal(signal.SIGUSR1, lambda *_: (folder / f"usr1-{attempt}-{rank}").touch())
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while attempt == "0" or step < 30:
    optimizer.zero_grad()
    model(torch.ones(16, 64)).sum().backward()
    optimizer.step()
    step += 1
    (folder / f"steps-{attempt}-{rank}").write_text(str(step))
    time.sleep(0.01)
