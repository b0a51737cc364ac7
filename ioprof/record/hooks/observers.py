"""Observers of what is called for every sample: of transforms, and of Pillow's decoders.

They are those of the extension; without it, the Python twin's. `watch` says whether they record, `forget` begins anew, `makes` says
which batch a thread works for, and `decoded` tells them of an image that was decoded elsewhere.
"""

try:
    from ioprof._native import decoded, forget, loading, makes, transforming, watch
except ImportError:  # built without a C compiler
    from ioprof.record.hooks.observers_twin import decoded, forget, loading, makes, transforming, watch

__all__ = ["decoded", "forget", "loading", "makes", "transforming", "watch"]
