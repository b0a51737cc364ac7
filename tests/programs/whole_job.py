"""A whole training job with parts of known length; prints them as JSON, in seconds by its own
clock.

Arguments: SLOW_MODULE_FOLDER CHECKPOINT. The folder has a module `slow_to_import`.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

took: dict[str, float] = {}


def timed(name: str, function: Callable[[], Any]) -> Any:
    """Call a function, and add its time to the part of that name."""
    begin = time.monotonic()
    result = function()
    took[name] = took.get(name, 0.0) + time.monotonic() - begin
    return result


def imports() -> None:
    """The imports of the job."""
    import slow_to_import
    import torch  # noqa: F401

    assert slow_to_import.READY


sys.path.insert(0, sys.argv[1])
timed("imports", imports)

import torch  # noqa: E402


class Numbers(torch.utils.data.Dataset):
    """Random numbers."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.full((4,), float(index))


def validate() -> None:
    """Four batches without gradients."""
    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4):
            model(batch)
            time.sleep(0.1)


def train_epoch() -> None:
    """Four steps."""
    for batch in loader:
        optimizer.zero_grad()
        model(batch).mean().backward()
        time.sleep(0.05)
        optimizer.step()


class SlowTensor:
    """Takes a while to pickle."""

    def __getstate__(self) -> dict[str, int]:
        time.sleep(0.4)
        return {"value": 1}


timed("index", lambda: time.sleep(0.8))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1)
for _ in range(2):
    timed("epochs", train_epoch)
    timed("validation", validate)
    timed(
        "checkpoint",
        lambda: torch.save({"model": model.state_dict(), "slow": SlowTensor()}, sys.argv[2]),
    )
timed("end", lambda: time.sleep(0.5))
print(json.dumps(took))
