"""Observers of what is called for every sample: of transforms, of Pillow's decoders, and of all
others.

They are those of the extension; in an interpreter that cannot load it (see `ring`), those in
Python. `watch` says whether they record, `forget` drops what threads are doing, `makes` says which
batch a thread makes, `fetches` whether it is within the fetch of one, `decoded` adds an image that
was decoded elsewhere, and `interrupted` excludes a time from the transform in progress. `Loop` is
what a thread's training loop computes; `calling` observes calls of torch modules, `propagating`
backward passes, `exchanging` collectives, `awaiting` the waits for those that `expect` one,
`begin_step` and `end_step` steps of optimizers, all for the state that they `follow`, and
`hooks_ns` is what these have taken. `numbered` tells collectives of one name within a step apart.
`decoding` observes a function that decodes, and `decoding_items` one that returns an iterator that
does.
"""

try:
    from ioprof._native import (
        Loop,
        awaiting,
        begin_step,
        calling,
        decoded,
        decoding,
        decoding_items,
        end_step,
        exchanging,
        expect,
        fetches,
        follow,
        forget,
        hooks_ns,
        interrupted,
        loading,
        makes,
        numbered,
        operating,
        propagating,
        transforming,
        type_modified,
        watch,
    )
except ImportError:  # this interpreter cannot load it
    from ioprof.instrument.hooks.python_observers import (
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
    from ioprof.instrument.hooks.pytorch.compute import Loop  # type: ignore[assignment]
    from ioprof.instrument.hooks.pytorch.python_step_hooks import (
        awaiting,
        begin_step,
        calling,
        end_step,
        exchanging,
        expect,
        follow,
        hooks_ns,
        numbered,
        propagating,
    )

__all__ = [
    "Loop",
    "awaiting",
    "begin_step",
    "calling",
    "decoded",
    "decoding",
    "decoding_items",
    "end_step",
    "exchanging",
    "expect",
    "fetches",
    "follow",
    "forget",
    "hooks_ns",
    "interrupted",
    "loading",
    "makes",
    "numbered",
    "operating",
    "propagating",
    "transforming",
    "type_modified",
    "watch",
]
