"""The image in the stored bytes of a record, by the kind of file that holds it."""

from collections.abc import Callable
from typing import Final

from ioprof.foreign import recordio, tensorprotos, tfrecord
from ioprof.foreign.tensorprotos import Shape

Value = tuple[bytes | bytearray | memoryview, Shape | None]
"""The image, and its shape if it is raw pixels."""


VALUES: Final[dict[str, Callable[[bytes | memoryview], Value]]] = {
    "file": lambda data: (data, None),
    "tfrecord": lambda data: (tfrecord.image_of(data), None),
    "recordio": lambda data: (recordio.image_of(data), None),
    "lmdb": lambda data: tensorprotos.decode(data)[:2],
}
"""Kind → the function that finds the image in a record's bytes; it raises `DatasetError`."""
