"""What a path lies on: file system, devices, servers, stripes, and whether it can be known that a read needed them.

    storage = describe(Path("/scratch/imagenet"))
    storage.kind            # "shared"
    storage.network.layout  # the stripes of a file there, on Lustre

Everything is found without root and without a program of the file system's, from /proc, /sys and extended attributes. What is not
known is None, and `unknown` says why.
"""

from ioprof.storage.described import Layer, PathStorage, describe

__all__ = ["Layer", "PathStorage", "describe"]
