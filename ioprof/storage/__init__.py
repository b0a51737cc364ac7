"""The storage of a path: file system, devices, servers, stripes, and whether the source of a read
(storage or cache) can be known.

    storage = describe(Path("/scratch/imagenet"))
    storage.kind            # "shared"
    storage.network.layout  # the stripes of a file there, on Lustre

Everything is read from /proc, /sys and extended attributes, without root and without tools of the
file system. An unknown value is None, and `unknown` holds the reason.
"""

from ioprof.storage.description import Layer, PathStorage, describe

__all__ = ["Layer", "PathStorage", "describe"]
