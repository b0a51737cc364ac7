"""Generates a synthetic ImageNet: images with its size distribution, in the forms in which it is
distributed.
"""

import contextlib
import tarfile
from array import array
from dataclasses import asdict, dataclass
from itertools import chain, tee
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from ioprof import __version__
from ioprof.converters.job.dataset_writer import CHUNK_IMAGES, in_chunks
from ioprof.converters.job.destination import (
    check_destination,
    new_folder,
    require_space,
    sync_file_system,
)
from ioprof.converters.job.engines import local
from ioprof.converters.manifests import SYNTHETIC_NAME, SYNTHETIC_SCHEMA
from ioprof.converters.options import GenerateOptions
from ioprof.converters.sources.synthetic_source import (
    SyntheticImage,
    class_name,
    synthetic_classes,
    synthetic_image,
    synthetic_images,
)
from ioprof.format.dataset import quantiles_of, write_json_atomically
from ioprof.reporter import Advance

_FILE_OVERHEAD_BYTES: Final = 4096


@dataclass(frozen=True)
class Synthetic:
    """A generated folder; its `synthetic.json` holds the same values."""

    path: Path
    form: str
    images: int
    classes: int
    seed: int
    bytes: int
    """Total size of the image files."""
    image_bytes_quantiles: dict[str, int]
    version: str

    def manifest(self) -> dict[str, Any]:
        """The keys of `synthetic.json`."""
        return {
            "schema": SYNTHETIC_SCHEMA,
            **{key: value for key, value in asdict(self).items() if key != "path"},
        }

    def text(self, seconds: float) -> str:
        """One line: what was made, and the rate at which it was made in `seconds`."""
        return (
            f"{self.path}: {self.images} images in {self.classes} classes, {self.bytes / 1e6:.1f}"
            f" MB in {seconds:.1f} s ({self.images / seconds:.0f} images/s)"
        )


@dataclass(frozen=True)
class Generation:
    """A planned generation: destination and free space have been checked."""

    destination: Path
    options: GenerateOptions

    def run(self, advance: Advance = lambda _: None) -> Synthetic:
        """Generate; on failure nothing is left. Raises `CommandError` for a full disk, exhausted
        memory, or a dead worker.
        """
        with new_folder(self.destination, self.options.force) as folder:
            result = self._write(folder, advance)
            sync_file_system(folder)
            write_json_atomically(folder / SYNTHETIC_NAME, result.manifest())
        return result

    def _write(self, folder: Path, advance: Advance) -> Synthetic:
        options = self.options
        lengths = array("q")
        names = "".join(f"{wnid} {class_name(wnid)}\n" for wnid in synthetic_classes(options))
        (folder / "synset_words.txt").write_text(names)
        planned, inputs = tee(synthetic_images(options))
        tasks = ((options.seed, chunk) for chunk in in_chunks(inputs))
        num_tasks = -(-options.images // CHUNK_IMAGES)
        with FORMS[options.form](folder) as writer:
            with contextlib.closing(
                local(options.workers)(_create_images, tasks, num_tasks)
            ) as chunks:
                for image, data in zip(planned, chain.from_iterable(chunks), strict=True):
                    writer.add(image.wnid, image.name, data)
                    lengths.append(len(data))
                    advance(1)
            writer.finish()
        return Synthetic(
            path=self.destination,
            form=options.form,
            images=options.images,
            classes=options.num_classes,
            seed=options.seed,
            bytes=sum(lengths),
            image_bytes_quantiles=quantiles_of(lengths),
            version=__version__,
        )


def plan_generation(destination: Path, options: GenerateOptions) -> Generation:
    """Check destination and free space; raises `CommandError` for anything that would stop the
    work.
    """
    target = check_destination(destination, options.force)
    require_space(
        target,
        options.images * (115_000 + _FILE_OVERHEAD_BYTES),
        options.images if options.form == "tree" else 1,
    )
    return Generation(target, options)


def _create_images(task: tuple[int, list[SyntheticImage]]) -> list[bytes]:
    seed, planned = task
    return [synthetic_image(seed, image.number, image.target_bytes) for image in planned]


# -------------------------------------------------------------------------------------------- forms


class Form(Protocol):
    """A writer of image files, class after class, used as a context manager."""

    def __init__(self, folder: Path) -> None: ...

    def add(self, wnid: str, name: str, data: bytes) -> None:
        """Write the next image."""

    def finish(self) -> None:
        """Write what remains; called once all images have been added."""

    def __enter__(self) -> "Form": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class TreeForm:
    """Class folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, wnid: str, name: str, data: bytes) -> None:
        """Write the next image."""
        (self._folder / wnid).mkdir(exist_ok=True)
        (self._folder / wnid / name).write_bytes(data)

    def finish(self) -> None:
        """Write what remains; called once all images have been added."""

    def __enter__(self) -> "TreeForm":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class TarsForm:
    """A tar that contains one tar per class, written in one pass; an inner tar's header is written
    once its size is known.
    """

    def __init__(self, folder: Path) -> None:
        self._stream = (folder / "ILSVRC2012_img_train.tar").open("xb")
        self._wnid: str | None = None
        self._start = 0

    def add(self, wnid: str, name: str, data: bytes) -> None:
        """Write the next image."""
        if wnid != self._wnid:
            self._end_inner()
            self._wnid, self._start = wnid, self._stream.tell()
            self._stream.write(bytes(tarfile.BLOCKSIZE))
        self._stream.write(_header(name, len(data)))
        self._stream.write(data)
        self._stream.write(bytes(-self._stream.tell() % tarfile.BLOCKSIZE))

    def finish(self) -> None:
        """Write what remains; called once all images have been added."""
        self._end_inner()
        self._end_archive(0)
        self._stream.flush()

    def _end_inner(self) -> None:
        if self._wnid is None:
            return
        inner = self._start + tarfile.BLOCKSIZE
        self._end_archive(inner)
        end = self._stream.tell()
        self._stream.seek(self._start)
        self._stream.write(_header(f"{self._wnid}.tar", end - inner))
        self._stream.seek(end)

    def _end_archive(self, start: int) -> None:
        self._stream.write(bytes(2 * tarfile.BLOCKSIZE))
        self._stream.write(bytes(-(self._stream.tell() - start) % tarfile.RECORDSIZE))

    def __enter__(self) -> "TarsForm":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # `finish` has already reported a full disk
            self._stream.close()


def _header(name: str, size: int) -> bytes:
    header = tarfile.TarInfo(name)
    header.size = size
    return header.tobuf(tarfile.GNU_FORMAT)


FORMS: Final[dict[str, type[Any]]] = {"tree": TreeForm, "tars": TarsForm}
"""Name on the command line → its writer, a `Form`."""
