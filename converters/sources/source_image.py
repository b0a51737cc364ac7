"""One image of a source: the description that a worker process needs to read it."""

from typing import NamedTuple, Protocol


class SourceImage(NamedTuple):
    """One image, and the location of its bytes."""

    wnid: str
    name: str
    place: str
    """The archive that contains it; for an image in a file of its own, the folder, which is shared
    with other images."""
    offset: int = 0
    """Of its first byte in the archive; of `parquet` the row; of `synthetic` the image's number."""
    size: int | None = None
    """None: the whole file, or not known."""
    kind: str = "file"
    """A key of `image_converter.READERS`, or `file`: the bytes are stored unchanged in a file or an
    archive."""
    group: int = 0
    """For images that can only be read as a group: the number of the group in the file."""

    @property
    def file(self) -> str:
        """The file that contains it."""
        return (
            self.place
            if self.size is not None or self.kind != "file"
            else f"{self.place}/{self.name}"
        )

    def __str__(self) -> str:
        """For messages: the image's file, or the archive and the image's name in it."""
        if self.kind == "parquet":
            return f"{self.file} (row {self.offset}, {self.name})"
        return self.file if self.size is None else f"{self.file} ({self.wnid}, {self.name})"


class Reader(Protocol):
    """Reads the images of one kind of source. Each process creates its own."""

    def read(self, image: SourceImage) -> bytes:
        """The bytes of the image's file; raises OSError when the storage fails."""

    def close(self) -> None:
        """Close all open files."""
