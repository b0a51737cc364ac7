"""Datasets from images: `convert` existing images, or `generate` synthetic ones with ImageNet's
size distribution.

    open_source ─▶ shuffled order ─▶ engine(ImageConverter: read, transform) ─▶ journal ─▶ Layout, in order ─▶ manifest, rename

    options     the options of `convert` and `generate`, validated           sources/   where the images come from
    manifests   the files that mark a folder as ioprof's                     images/    one image: synthesis, decode, resize, encode
    api         the public names                                             layouts/   how records are stored: a writer per layout
                                                                             job/       the conversion as a resumable job

Imports go one way: options, manifests ◀── images ◀── sources ◀── layouts ◀── job ◀── api. Nothing
here prints. A job is planned first, which reports every error that can be found before work starts,
and then run. A conversion that was killed leaves its journal and the incomplete dataset next to the
destination; the same conversion, started again, resumes from there.
"""  # noqa: E501

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ioprof.converters.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # Lazy: a worker process needs few of these modules, and importing all of them would take longer
    # than its first images. Python also asks here for submodules
    # (`from ioprof.converters import layouts`), which the import system then finds itself.
    if not name.startswith("__") and find_spec(f"ioprof.converters.{name}") is None:
        api = import_module("ioprof.converters.api")
        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module 'ioprof.converters' has no attribute {name!r}")
