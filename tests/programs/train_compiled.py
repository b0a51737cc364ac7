"""Trains a model that torch compiles again for each length of its input; prints the seconds of the
steps that compile.

train_compiled.py STEPS: every third of the steps has another length.
"""

import json
import sys
import time

import torch
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
compiled = torch.compile(model, dynamic=False, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
took_s = []
for step in DataLoader(range(int(sys.argv[1])), batch_size=None):  # type: ignore[arg-type]
    inputs = torch.ones(4 + step // 3, 8)
    began = time.perf_counter()
    compiled(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    took_s.append(time.perf_counter() - began)
print(
    json.dumps(
        {
            "compiling_s": sum(took_s[::3]),
            "others_s": sum(sum(took_s[first::3]) for first in (1, 2)),
        }
    )
)
