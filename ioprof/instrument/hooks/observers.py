"""Observers of what is called for every sample: of transforms, of Pillow's decoders, and of all
others.

They are those of the extension; in an interpreter that cannot load it (see `ring`), those in
Python. `watch` says whether they record, `forget` drops what threads are doing, `makes` says which
batch a thread makes, `fetches` whether it is within the fetch of one, `decoded` adds an image that
was decoded elsewhere, and `interrupted` excludes a time from the transform in progress. `calling`
observes calls of torch modules, `decoding` a function that decodes, and `decoding_items` one that
returns an iterator that does.
"""

try:
    from ioprof._native import (
        calling,
        decoded,
        decoding,
        decoding_items,
        fetches,
        forget,
        interrupted,
        loading,
        makes,
        operating,
        transforming,
        type_modified,
        watch,
    )
except ImportError:  # this interpreter cannot load it
    from ioprof.instrument.hooks.python_observers import (
        calling,
        decoded,
        decoding,
        decoding_items,
        fetches,
        forget,
        interrupted,
        loading,
        makes,
        operating,
        transforming,
        type_modified,
        watch,
    )

__all__ = [
    "calling",
    "decoded",
    "decoding",
    "decoding_items",
    "fetches",
    "forget",
    "interrupted",
    "loading",
    "makes",
    "operating",
    "transforming",
    "type_modified",
    "watch",
]
