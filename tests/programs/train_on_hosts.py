"""One rank of a small data-parallel training, whose last rank comes late to every exchange: STEPS
LATE_S.

Takes its rank from the variables of torchrun, or of srun, and meets the others at MASTER_ADDR and
MASTER_PORT.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

steps, late_s = int(sys.argv[1]), float(sys.argv[2])
rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_STEP_NUM_TASKS"])
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=ranks)
model = DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = torch.utils.data.DataLoader(torch.zeros(steps * 4, 256), batch_size=4)
for batch in batches:
    output = model(batch)
    if rank == ranks - 1:
        time.sleep(late_s)
    output.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
