"""Checkpoints of the built-in job: folders `step-N`, each made by all ranks through
`torch.distributed.checkpoint`.

A checkpoint is written under another name and gets its own when all ranks have written theirs, so
that a job which is killed at any instant leaves whole checkpoints alone.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

from ioprof.files import remove_own
from ioprof.instrument import manual

KEPT: Final = 2
"""Checkpoints that stay; older ones are removed."""
_NAME: Final = re.compile(r"step-(\d+)")
_UNFINISHED: Final = ".unfinished"
_OWN: Final = "ioprof.json"
"""In each checkpoint, so that none of another program is removed: torchtitan, for example, gives
them the same names."""
_FILES: Final = re.compile(rf"__\d+_\d+\.distcp(\.tmp)?|\.metadata(\.tmp)?|{re.escape(_OWN)}")
"""What is in a checkpoint."""


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
        for path in folder.glob(f"step-*{_UNFINISHED}"):
            _remove(path)
        unfinished.mkdir(parents=True)  # raises OSError where something else has the name
        (unfinished / _OWN).write_text("{}\n")
    _wait_for_all(num_ranks)
    save_state(state, checkpoint_id=unfinished, no_dist=num_ranks == 1)
    _wait_for_all(num_ranks)
    if rank == 0:
        os.replace(unfinished, folder / f"step-{step}")
        for old in [folder / f"step-{number}" for number in steps_saved(folder)][:-KEPT]:
            if _is_own(old):
                doomed = old.with_name(f"{old.name}{_UNFINISHED}")
                os.replace(old, doomed)
                _remove(doomed)


def foreign_unfinished(folder: Path) -> Path | None:
    """What has the name of a checkpoint that ioprof began, and is none; the job would fail once it
    writes one of this name.
    """
    found = sorted(folder.glob(f"step-*{_UNFINISHED}"))
    return next((path for path in found if _NAME.fullmatch(path.stem) and not _is_own(path)), None)


def _is_own(path: Path) -> bool:
    return not path.is_symlink() and (path / _OWN).is_file()


def _remove(path: Path) -> None:
    """Remove a checkpoint of ioprof; what else is in its folder stays."""
    if _is_own(path):
        remove_own(path, _FILES.fullmatch)


def load(folder: Path, step: int, state: dict[str, Any], num_ranks: int) -> dict[str, Any]:
    """The state of this rank after `step` steps; `state` has the keys and shapes to read, and its
    tensors are overwritten.
    """
    from torch.distributed.checkpoint.state_dict_loader import load as load_state

    load_state(state, checkpoint_id=folder / f"step-{step}", no_dist=num_ranks == 1)
    return state


def _wait_for_all(num_ranks: int) -> None:
    if num_ranks > 1:
        import torch.distributed as dist

        with manual.unrecorded_collectives():
            dist.barrier()
