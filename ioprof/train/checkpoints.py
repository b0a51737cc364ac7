"""Checkpoints of the built-in job: folders `step-N`, each made by all ranks through `torch.distributed.checkpoint`.

A checkpoint is written under another name and gets its own when all ranks have written theirs, so that a job which is killed at any
instant leaves whole checkpoints alone.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

from ioprof.instrument import manual

KEPT: Final = 2
"""Checkpoints that stay; older ones are removed."""
_NAME: Final = re.compile(r"step-(\d+)")
_UNFINISHED: Final = ".unfinished"


def steps_saved(folder: Path) -> list[int]:
    """The steps of which the folder has a checkpoint, in order."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(found.group(1)) for name in names if (found := _NAME.fullmatch(name)))


def save(folder: Path, step: int, state: dict[str, Any], rank: int, num_ranks: int) -> None:
    """Write the checkpoint of all ranks after `step` steps. All ranks call it at the same time."""
    from torch.distributed.checkpoint.state_dict_saver import save as save_state

    unfinished = folder / f"step-{step}{_UNFINISHED}"
    if rank == 0:
        for path in folder.glob(f"*{_UNFINISHED}"):
            shutil.rmtree(path)
    _wait_for_all(num_ranks)
    save_state(state, checkpoint_id=unfinished, no_dist=num_ranks == 1)
    _wait_for_all(num_ranks)
    if rank == 0:
        os.replace(unfinished, folder / f"step-{step}")
        for old in steps_saved(folder)[:-KEPT]:
            doomed = folder / f"step-{old}{_UNFINISHED}"
            os.replace(folder / f"step-{old}", doomed)
            shutil.rmtree(doomed)


def load(folder: Path, step: int, state: dict[str, Any], num_ranks: int) -> dict[str, Any]:
    """The state of this rank after `step` steps; `state` has the keys and shapes to read, and its tensors are overwritten."""
    from torch.distributed.checkpoint.state_dict_loader import load as load_state

    load_state(state, checkpoint_id=folder / f"step-{step}", no_dist=num_ranks == 1)
    return state


def _wait_for_all(num_ranks: int) -> None:
    if num_ranks > 1:
        import torch.distributed as dist

        with manual.unrecorded_collectives():
            dist.barrier()
