"""Observes checkpoints: `checkpoint` spans of functions that save or load the state of a model:
"save", "load" or "async save". Functions of training libraries that save all of a state are one
save, whatever they call.

The second part of an asynchronous save, which goes on while the job trains, is a span of its own,
"async save in the background". It ends when the future that the function returned is done. What a
function does by calling another of them is part of its span. The span has the bytes of the file; of
a checkpoint in a folder, to which other ranks write too, those of this rank's files.
"""

import os
import sys
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.patches import Function
from ioprof.instrument.hooks.state import HookState
from ioprof.instrument.hooks.versions import UnknownVersionError
from ioprof.instrument.span import emit

FUNCTIONS: Final = {
    "torch.serialization": {"save": "save"},
    "torch.distributed.checkpoint.state_dict_saver": {
        "save": "save",
        "save_state_dict": "save",
        "async_save": "async save",
    },
    "torch.distributed.checkpoint.state_dict_loader": {"load": "load", "load_state_dict": "load"},
    "safetensors.torch": {"save_file": "save", "save_model": "save"},
    "transformers.trainer": {
        "Trainer._save_checkpoint": "save",
        "Trainer._load_from_checkpoint": "load",
    },
    "accelerate.accelerator": {"Accelerator.save_state": "save", "Accelerator.load_state": "load"},
    "lightning.pytorch.trainer.trainer": {"Trainer.save_checkpoint": "save"},
    "pytorch_lightning.trainer.trainer": {"Trainer.save_checkpoint": "save"},
}
"""By module: functions and methods, and the names of their spans. Not all versions have all of
them. Functions that load one file are decoders, since samples are stored so too."""
_PUBLIC: Final = {
    "torch.serialization": "torch",
    "torch.distributed.checkpoint.state_dict_saver": "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict_loader": "torch.distributed.checkpoint",
}
"""Packages that export the same functions, if they were imported before."""
_MOST_FILES: Final = 64
"""Of a rank in a folder, whose sizes are asked for: one for each thread that writes."""


def observe(module: ModuleType, state: HookState) -> None:
    """Observe a module of `FUNCTIONS`."""
    package = _PUBLIC.get(module.__name__, "")
    functions = FUNCTIONS[module.__name__].items()
    if not sum(
        state.wrap_exported(module, package, path, partial(_observe_function, label))
        for path, label in functions
    ):
        raise UnknownVersionError(f"{module.__name__} has none of the functions that save or load")


def _observe_function(label: str, original: Function, state: HookState) -> Function:
    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        thread = state.per_thread.current
        if not state.is_on:
            return original(*args, **kwargs)
        if thread.in_checkpoint:
            before = thread.saved_bytes
            result = original(*args, **kwargs)
            if label == "save":  # what it called may have written the same files
                written = before + max(0, _bytes_written(args, kwargs))
                thread.saved_bytes = max(thread.saved_bytes, written)
            _follow_upload(label, result)
            return result
        state.start_deferred()
        thread.in_checkpoint, thread.saved_bytes = True, 0
        start_ns, size = monotonic_ns(), -1
        try:
            result = original(*args, **kwargs)
            if label == "save":
                size = max(_bytes_written(args, kwargs), thread.saved_bytes or -1)
        finally:
            thread.in_checkpoint = False
            end_ns = monotonic_ns()
            emit("checkpoint", start_ns, end_ns, label, bytes=size)
            thread.loop.add_gap(start_ns, end_ns)
        _follow_upload(label, result)
        return result

    return checkpoint


def _follow_upload(label: str, result: Any) -> None:
    """Emit what an asynchronous save, which has returned, does in the background."""
    # a future, or an object that has one for the upload (torch 2.7 and newer)
    future: Any = getattr(result, "upload_completion", result) if label == "async save" else None
    if hasattr(future, "add_done_callback"):
        begin_ns, name = monotonic_ns(), f"{label} in the background"
        future.add_done_callback(lambda _: emit("checkpoint", begin_ns, monotonic_ns(), name))


def _bytes_written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The size of the file that was written, by its path or by an open file, or of this rank's
    files in the folder; -1: it is neither, or not known.
    """
    target: Any = kwargs.get("f", kwargs.get("filename", args[1] if len(args) > 1 else None))
    with suppress(Exception):  # an object of the job's own, which must not fail for this
        folder = (
            kwargs.get("checkpoint_id")
            or getattr(kwargs.get("storage_writer", target), "path", None)
            or target
        )
        if isinstance(folder, str | os.PathLike) and os.path.isdir(folder):
            return _bytes_in_folder(os.fspath(folder))
        if isinstance(target, str | os.PathLike):
            return os.stat(target).st_size if os.path.isfile(target) else -1
        if isinstance(target.name, str):
            return int(target.tell())
    return -1


def _bytes_in_folder(folder: str) -> int:
    """Of the files that torch.distributed.checkpoint names by rank and number; -1: there is
    none.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    rank = (
        distributed.get_rank()
        if distributed and distributed.is_available() and distributed.is_initialized()
        else 0
    )
    size = -1
    for number in range(_MOST_FILES):
        try:
            size = max(0, size) + os.stat(os.path.join(folder, f"__{rank}_{number}.distcp")).st_size
        except FileNotFoundError:
            break
    return size
