"""Hooks into the libraries of somebody's job: they observe data loaders, decoders, optimizers and collectives, and change nothing.

Each module here knows one library and has `observe(module)`. `WATCHED` says which modules it wants to see, right after they were
executed; one that the job never imports is never imported here. Whatever an `observe` raises is swallowed: the job goes on
unobserved by it.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Final

from ioprof.record.hooks.imports import Watch
from ioprof.record.hooks.patches import patches

WATCHED: Final = {
    "multiprocessing.util": "forks",
    "torch.utils.data.dataloader": "consumer",
    "torch.utils.data._utils.worker": "worker",
    "torch.utils.data._utils.fetch": "fetcher",
    "torch.utils.data._utils.pin_memory": "pinning",
    "torch.optim.optimizer": "training",
    "torch.autograd": "training",
    "torch.distributed.distributed_c10d": "collectives",
    "torch.nn.parallel.distributed": "gradients",
    "torchvision.transforms.transforms": "transforms",
    "torchvision.transforms.v2._container": "transforms",
    "albumentations.core.composition": "transforms",
    "PIL.Image": "transforms",
    "PIL.ImageFile": "pillow",
    "cv2": "decoders",
    "torchvision.io.image": "decoders",
    "nvidia.dali.plugin.pytorch": "dali",
    "nvidia.dali.pipeline": "dali",
}
"""Modules of libraries, and the module here that observes each."""

_PILLOW_PLUGIN: Final = "ImagePlugin"

_watch: Watch | None = None


def install() -> None:
    """Observe all watched modules: those that are loaded now, the others when they are. Costs the job one look-up per import."""
    global _watch
    if _watch is not None:
        return
    _watch = Watch(_is_watched, _observe)
    sys.meta_path.insert(0, _watch)
    for name in [name for name in list(sys.modules) if _is_watched(name)]:
        module = sys.modules.get(name)
        # One that is just being executed lacks what its end would define, and is left alone.
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _observe(module)


def remove() -> None:
    """Take everything away again."""
    global _watch
    if _watch in sys.meta_path:
        sys.meta_path.remove(_watch)
    _watch = None
    patches.undo()


def _is_watched(name: str) -> bool:
    return name in WATCHED or (name.endswith(_PILLOW_PLUGIN) and name.startswith("PIL."))


def _observe(module: ModuleType) -> None:
    try:
        import_module(f"ioprof.record.hooks.{WATCHED.get(module.__name__, 'pillow')}").observe(module)
    except Exception as error:
        _complain(module.__name__, error)


def _complain(name: str, error: Exception) -> None:
    from ioprof.record.hooks.session import session

    session.tell(unobserved=name, why=f"{type(error).__name__}: {error}")
