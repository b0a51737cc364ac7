"""One image of a source: what processes are told to make a record of."""

from typing import NamedTuple, Protocol


class SourceImage(NamedTuple):
    """One image, and where its bytes lie."""

    wnid: str
    name: str
    place: str
    """The archive that holds it; of one that is a file of its own, the folder, which all its neighbours share."""
    offset: int = 0
    """Of its first byte; of `parquet` the row; of `synthetic` the number."""
    size: int | None = None
    """Null: all of the file, or not known."""
    kind: str = "file"
    """A key of `reading.READERS`, or `file`: the bytes lie in the file as they are."""
    group: int = 0
    """Of images that can only be read together, the number of the group in the file."""

    @property
    def file(self) -> str:
        """The file that holds it."""
        return self.place if self.size is not None or self.kind != "file" else f"{self.place}/{self.name}"

    def __str__(self) -> str:
        """For messages: the image's file, or its place in the archive."""
        if self.kind == "parquet":
            return f"{self.file} (row {self.offset}, {self.name})"
        return self.file if self.size is None else f"{self.file} ({self.wnid}, {self.name})"


class Reader(Protocol):
    """Reads the images of one kind of source. Made anew in each process."""

    def read(self, image: SourceImage) -> bytes:
        """The bytes of the image's file; raises OSError when the storage fails."""

    def close(self) -> None:
        """Close what is open."""
