"""Datasets from images: `convert` what there is, or `generate` what looks like ImageNet.

    open_source ─▶ shuffled order ─▶ engine(ImageWork: read, check, transform) ─▶ journal ─▶ Layout, in order ─▶ manifest, rename

Nothing here prints. A job is planned first, which finds everything that can be found wrong before work starts, and then run. A
conversion that was killed leaves its journal and its half-made dataset beside the destination; the same one goes on from there.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ioprof.converters.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # Lazy: a worker needs little of all this, and would take longer to load it than for its first images. Modules are looked for
    # here, too: `from ioprof.converters import shards`.
    if not name.startswith("__") and find_spec(f"ioprof.converters.{name}") is None:
        api = import_module("ioprof.converters.api")
        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module 'ioprof.converters' has no attribute {name!r}")
