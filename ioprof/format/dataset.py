"""Dataset: the manifest that converters write and loaders read.

A folder is a dataset if, and only if, it holds a valid `dataset.json`; converters write that file
last, by rename, so an incomplete folder is never one. The manifest and the index are untrusted
input: every value is checked before it is used.

    DATASET/dataset.json               the manifest
    files:  DATASET/SPLIT/WNID/NAME    one file per record; NAME ends in .JPEG, in .rgb for raw pixels, or in the source's suffix
            DATASET/SPLIT.txt          the index: a line `SPLIT/WNID/NAME label` per record, in the order of the records
    lmdb:   DATASET/SPLIT/data.mdb     one environment that contains only records; key `%08d_NAME` (the number of the record),
                                       value: see ioprof.foreign.tensorprotos; with shards, each is a folder `SPLIT-%05d-of-%05d`, and the
                                       numbers continue from one to the next
    webdataset: DATASET/SPLIT/SPLIT-%06d.tar   per record `KEY.jpg` (`.png`, `.rgb`), `KEY.cls` and `KEY.json`, in this order; KEY
                                       is the number of the record (`%08d`), cls its label in digits, json its wnid, name and label;
                                       SPLIT-%06d.idx is the index of a tar for DALI
    parquet: DATASET/data/SPLIT-%05d-of-%05d.parquet   rows `image{bytes, path}` and `label`, as Hugging Face's datasets have them
    raw:    DATASET/SPLIT.bin          the records one after the other; SPLIT.index and SPLIT.names: see ioprof.format.record_index
    indexed: DATASET/SPLIT.index       the same index, of records that lie in files of other programs; nothing is copied
"""  # noqa: E501

import hashlib
import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ioprof.errors import DatasetError
from ioprof.files import write_atomically
from ioprof.format.listed_files import read_files
from ioprof.format.schema import DATASET_SCHEMA

if TYPE_CHECKING:
    import lmdb

MANIFEST_NAME: Final = "dataset.json"
LAYOUTS: Final = ("files", "lmdb", "webdataset", "parquet", "raw", "indexed")
INDEXED_LAYOUTS: Final = ("raw", "indexed")
PARQUET_FOLDER: Final = "data"
INDEX_DIGEST: Final = "index:"
"""Begins the digest of data that is read where it is: sha256 of its index, since the records were
not read."""
TRANSFORMS: Final = ("original", "rgb256")
ENCODINGS: Final = ("source", "jpeg", "png", "raw")
RESIZES: Final = ("square", "short", "strict")
MAX_SHARDS: Final = 10**6
QUANTILES: Final = ("min", "p5", "p25", "p50", "p75", "p95", "p99", "max", "mean")
QUANTILE_SHARES: Final = {
    "min": 0,
    "p5": 5,
    "p25": 25,
    "p50": 50,
    "p75": 75,
    "p95": 95,
    "p99": 99,
    "max": 100,
}
"""Of the quantiles of record sizes, in percent."""


_MAX_NAME_BYTES: Final = 255
_MAX_MANIFEST_BYTES: Final = 1 << 28
_AGAIN: Final = "convert the dataset again"


@dataclass(frozen=True)
class ImageFormat:
    """The transform of each image, and how a record stores it."""

    transform: str
    """`original`: the source's bytes untouched. `rgb256`: RGB, resized by `resize` and `size`."""
    encoding: str
    """`source` (unchanged), `jpeg`, `png`, or `raw` (height × width × channels bytes, RGB)."""
    size: int | None = None
    """Side of the square, or of the shorter side, in pixels; None for `original`."""
    quality: int | None = None
    """JPEG quality, 1 to 95; None for other encodings."""
    resize: str | None = None
    """`short`: the shorter side was resized to `size`, without a crop. None or `square`: the
    centred square was resized, by a filter that looks at pixels around it too. `strict`: it was cut
    out first.
    """


@dataclass(frozen=True)
class ImageClass:
    """One class: its index in `Dataset.classes` is its label."""

    wnid: str
    name: str


@dataclass(frozen=True)
class Dataset:
    """The manifest of a dataset folder of any layout."""

    path: Path
    name: str
    split: str
    layout: str
    image: ImageFormat
    records: int
    """Number of samples; the loaders' indices run from 0 to `records` - 1, in the same order in
    every layout."""
    bytes: int
    """Sum of the lengths of all records' image bytes, without the overhead of the layout."""
    classes: tuple[ImageClass, ...]
    label_convention: str
    """`sorted_wnid`: label = index of the wnid among all wnids of the source, sorted."""
    record_bytes_quantiles: dict[str, int]
    """min, p5, p25, p50, p75, p95, p99, max and mean of the records' lengths in bytes."""
    digest: str
    """`sha256:` over label and bytes of every record, in order (see `RecordDigest`); equal for
    equal content in any layout. `index:` where the records were not read: see `is_read`.
    """
    source: str
    """A description of the source: never used as a path."""
    version: str
    """Version of ioprof that wrote it."""
    shuffle_seed: int
    scale: float = 1.0
    quarantined: tuple[dict[str, str], ...] = field(default=())
    """Source images that could not be used, each with its `name` and the `reason`; not included in
    `records`."""
    shards: int | None = None
    """Number of parts, in the order of the records: environments of `lmdb`, tars of `webdataset`,
    shards of `parquet`. None: not divided.
    """
    conversion: dict[str, Any] | None = None
    """Options and source of the command that made it, so that the same command finds it done; None:
    not known."""

    @property
    def data_path(self) -> Path:
        """The split's folder: class folders of `files`, tars of `webdataset`, `data.mdb` of `lmdb`;
        `lmdb` with shards has none.
        """
        return self.path / self.split

    def shard_paths(self) -> list[Path]:
        """In order: folders with a `data.mdb` each for `lmdb` (one without shards), tars for
        `webdataset`, shards for `parquet`; empty for other layouts.
        """
        if self.layout == "webdataset":
            return [
                self.data_path / tar_name(self.split, number) for number in range(self.shards or 0)
            ]
        if self.layout == "lmdb":
            return [self.path / name for name in environment_names(self.split, self.shards)]
        if self.layout == "parquet":
            total = self.shards or 0
            return [
                self.path / PARQUET_FOLDER / parquet_name(self.split, number, total)
                for number in range(total)
            ]
        return []

    def data_files(self) -> list[str]:
        """The files that a job on the dataset reads, in the order of their records; of `files` the
        index comes first.

        Raises `DatasetError` if the index of `files` is damaged; whether the files are there is not
        checked.
        """
        if self.layout == "files":
            return [str(self.index_path), *(f"{self.path}/{path}" for path in read_index(self)[0])]
        if self.layout in INDEXED_LAYOUTS:
            return [*map(str, (self.index_path, self.names_path)), *self.record_files()]
        return self.record_files()

    def record_files(self) -> list[str]:
        """The files that hold the records themselves, without an index; of `files` all of them.
        Raises `DatasetError`.
        """
        if self.layout == "files":
            return self.data_files()[1:]
        if self.layout == "raw":
            return [str(self.data_bin_path)]
        if self.layout == "indexed":
            return [stamp.path for stamp in read_files(self.files_path)[1]]
        return [
            str(path / "data.mdb" if self.layout == "lmdb" else path) for path in self.shard_paths()
        ]

    @property
    def data_bin_path(self) -> Path:
        """Of `raw`: the file of the records."""
        return self.path / f"{self.split}.bin"

    @property
    def names_path(self) -> Path:
        """Of `raw` and `indexed`: the names of the records."""
        return self.path / f"{self.split}.names"

    @property
    def files_path(self) -> Path:
        """Of `indexed`: the list of the files."""
        return self.path / f"{self.split}.files"

    @property
    def is_read(self) -> bool:
        """Whether the digest is that of the records; of data that is read where it is, it is that
        of the index.
        """
        return not self.digest.startswith(INDEX_DIGEST)

    @property
    def index_path(self) -> Path:
        """The index of `files`, which `read_index` reads (its paths are relative to the dataset's
        folder); of `raw` and `indexed` that of `record_index`.
        """
        return self.path / f"{self.split}{'.index' if self.layout in INDEXED_LAYOUTS else '.txt'}"

    @classmethod
    def load(cls, path: Path) -> "Dataset":
        """The dataset in the folder `path`; raises `DatasetError` for an invalid one."""
        return _checked(path, _read_json(path / MANIFEST_NAME))

    def save(self) -> None:
        """Write the manifest by rename, with the file and its folder synced: this makes the folder
        a dataset.
        """
        write_json_atomically(self.path / MANIFEST_NAME, self.manifest())

    def manifest(self) -> dict[str, Any]:
        """The keys of the manifest."""
        left_out = ("path",) if self.conversion is not None else ("path", "conversion")
        return {
            "schema": DATASET_SCHEMA,
            **{key: value for key, value in asdict(self).items() if key not in left_out},
        }


def read_index(dataset: Dataset) -> tuple[list[str], list[int]]:
    """Paths (relative to `dataset.path`) and labels of all records of a `files` dataset, in order.

    Raises `DatasetError` unless there are exactly `dataset.records` lines and each names a file
    within the folder of its label's class. Does not check that the files exist.
    """
    index = dataset.index_path
    folders = [f"{dataset.split}/{entry.wnid}/" for entry in dataset.classes]
    paths: list[str] = []
    labels: list[int] = []
    for number, line in enumerate(_index_lines(dataset), start=1):
        path, _, text = line.rpartition(" ")
        label = int(text) if len(text) < 10 and text.isascii() and text.isdigit() else -1
        if not 0 <= label < len(folders):
            raise DatasetError(
                f"{index}: line {number} has label {text[:20]!r}, not 0 to {len(folders) - 1};"
                f" {_AGAIN}"
            )
        folder = folders[label]
        if not (path.startswith(folder) and is_plain_name(path[len(folder) :])):
            raise DatasetError(
                f"{index}: line {number} names {path[:80]!r}, no file of {folder}; {_AGAIN}"
            )
        paths.append(path)
        labels.append(label)
    return paths, labels


def open_environment(folder: Path, *, readahead: bool = True) -> "lmdb.Environment":
    """The LMDB environment in `folder`, for reading, with or without readahead of its map; raises
    `DatasetError` if it cannot be opened or is truncated.
    """
    import lmdb

    file = folder / "data.mdb"
    if not file.is_file():  # opening a FIFO would block until another process writes to it
        raise DatasetError(
            f"{file}: {'not a regular file' if file.exists() else 'missing'}; {_AGAIN}"
        )
    # No lock: a finished dataset is not written to, and locks fail on many cluster file systems.
    try:
        environment = lmdb.open(
            str(folder), readonly=True, lock=False, create=False, max_dbs=0, readahead=readahead
        )
    except (lmdb.Error, OSError) as error:
        raise DatasetError(
            f"{file}: not an LMDB environment that can be opened ({error}); {_AGAIN}"
        ) from None
    # Accessing a mapped page beyond the end of the file raises SIGBUS, which ends the process.
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    size = file.stat().st_size
    if size < needed:
        environment.close()
        raise DatasetError(f"{file}: cut short ({size} bytes, its pages need {needed}); {_AGAIN}")
    return environment


def tar_name(split: str, number: int) -> str:
    """Name of a shard of `webdataset`, matching `{000000..000123}` in a shard pattern."""
    return f"{split}-{number:06d}.tar"


def parquet_name(split: str, number: int, total: int) -> str:
    """Name of a shard of `parquet`, as Hugging Face's datasets call them."""
    return f"{split}-{number:05d}-of-{total:05d}.parquet"


def environment_names(split: str, shards: int | None) -> list[str]:
    """Names of the folders of an `lmdb` dataset's environments."""
    return (
        [split]
        if shards is None
        else [f"{split}-{number:05d}-of-{shards:05d}" for number in range(shards)]
    )


def is_plain_name(text: str) -> bool:
    """Whether `text` can be the name of one file or folder on any Linux file system and one word of
    a line-based index.
    """
    if (
        text in ("", ".", "..")
        or "/" in text
        or len(text) > _MAX_NAME_BYTES
        or not text.isprintable()
    ):
        return False
    return text.isascii() or len(text.encode()) <= _MAX_NAME_BYTES


def write_json_atomically(path: Path, keys: dict[str, Any]) -> None:
    """Write `keys` to `path` so that it is there whole or not at all, also after a power cut."""
    write_atomically(path, json.dumps(keys, indent=1, ensure_ascii=False) + "\n", synced=True)


def quantiles_of(lengths: Sequence[int]) -> dict[str, int]:
    """`record_bytes_quantiles` of records of these lengths; an array of numbers is put into another
    order, instead of copied.
    """
    in_place = isinstance(lengths, array)
    numbers = np.frombuffer(lengths, lengths.typecode) if isinstance(lengths, array) else lengths
    values = np.percentile(numbers, list(QUANTILE_SHARES.values()), overwrite_input=in_place)
    return {
        **{name: round(float(value)) for name, value in zip(QUANTILE_SHARES, values, strict=True)},
        "mean": round(sum(lengths) / len(lengths)),
    }


class RecordDigest:
    """Digest of labels and record bytes in order: sha256 over label, length (both int64,
    little-endian) and sha256 of each record.

    Records are hashed separately, so that many processes can do it, and a job that resumes need not
    read existing records again.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, label: int, data: bytes | memoryview) -> None:
        """Add the next record."""
        self.add_hashed(label, len(data), hashlib.sha256(data).digest())

    def add_hashed(self, label: int, length: int, sha256: bytes) -> None:
        """Add the next record by its length and the sha256 of its bytes."""
        self.add_entries(
            label.to_bytes(8, "little", signed=True) + length.to_bytes(8, "little") + sha256
        )

    def add_entries(self, entries: bytes) -> None:
        """Add the next records: 48 bytes for each, which are label, length and sha256."""
        self._hash.update(entries)

    def text(self) -> str:
        """The digest in the format of the manifest."""
        return f"sha256:{self._hash.hexdigest()}"


def _index_lines(dataset: Dataset) -> list[str]:
    index = dataset.index_path
    longest = len(dataset.split.encode()) + 2 * _MAX_NAME_BYTES + 16
    try:
        if not index.is_file() or index.stat().st_size > dataset.records * longest:
            raise DatasetError(f"{index}: not the index of {dataset.records} records; {_AGAIN}")
        text = index.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{index}: cannot be read ({error}); {_AGAIN}") from None
    lines = text.split("\n")
    if lines.pop() != "" or len(lines) != dataset.records:
        raise DatasetError(
            f"{index}: {len(lines)} whole lines for {dataset.records} records; {_AGAIN}"
        )
    return lines


def parse_json(data: bytes) -> Any:
    """The value; raises ValueError, also for a text that cannot be stored again (half of a
    surrogate pair), and RecursionError.
    """
    keys = json.loads(data)
    if b"\\ud" in data.lower():
        json.dumps(keys, ensure_ascii=False).encode()
    return keys


def _read_json(manifest: Path) -> object:
    try:
        if manifest.stat().st_size > _MAX_MANIFEST_BYTES or not manifest.is_file():
            raise DatasetError(f"{manifest}: not a manifest of ioprof; {_AGAIN}")
        return parse_json(manifest.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetError(_no_manifest(manifest.parent)) from None
    except OSError as error:
        raise DatasetError(f"{manifest}: cannot be read ({error})") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{manifest}: not JSON ({error}); {_AGAIN}") from None


def _no_manifest(path: Path) -> str:
    if not path.exists():
        return f"{path}: no such folder; make a dataset with: ioprof convert imagenet SOURCE {path}"
    if not path.is_dir():
        return f"{path}: not a folder; a dataset is the folder that holds {MANIFEST_NAME}"
    return (
        f"{path}: not a dataset (no {MANIFEST_NAME}); make one with: ioprof convert imagenet {path}"
        " DATASET"
    )


# ----------------------------------------------------------------------------- checks of a manifest


def _checked(path: Path, keys: object) -> Dataset:
    manifest = path / MANIFEST_NAME

    def fail(what: str) -> DatasetError:
        return DatasetError(f"{manifest}: {what}; {_AGAIN}")

    if not isinstance(keys, dict):
        raise fail("not a JSON object")
    if keys.get("schema") != DATASET_SCHEMA:
        raise fail(
            f"schema is {str(keys.get('schema'))[:60]!r}, this version of ioprof reads"
            f" {DATASET_SCHEMA!r}"
        )

    def get(
        key: str, kind: type | tuple[type, ...], valid: Callable[[Any], bool] = lambda _: True
    ) -> Any:
        value = keys.get(key)
        if not isinstance(value, kind) or isinstance(value, bool) or not valid(value):
            raise fail(f"{key} is {str(value)[:60]!r}")
        return value

    return Dataset(
        path=path,
        name=get("name", str),
        split=get("split", str, is_plain_name),
        layout=get("layout", str, LAYOUTS.__contains__),
        image=_image(get("image", dict), fail),
        records=get("records", int, lambda value: 0 < value < 2**40),
        bytes=get("bytes", int, lambda value: 0 < value < 2**62),
        classes=_classes(get("classes", list), fail),
        label_convention=get("label_convention", str),
        record_bytes_quantiles=_quantiles(get("record_bytes_quantiles", dict), fail),
        digest=get(
            "digest",
            str,
            lambda value: value.startswith(("sha256:", INDEX_DIGEST)) and 70 <= len(value) <= 71,
        ),
        source=get("source", str),
        version=get("version", str),
        shuffle_seed=get("shuffle_seed", int),
        scale=float(get("scale", (int, float), lambda value: 0 < value < 1e6)),
        quarantined=_quarantined(keys.get("quarantined", []), fail),
        shards=_shards(keys, fail),
        conversion=found if isinstance(found := keys.get("conversion"), dict) else None,
    )


def _shards(keys: dict[str, Any], fail: Callable[[str], DatasetError]) -> int | None:
    shards, layout = keys.get("shards"), keys["layout"]
    if shards is None and layout not in ("webdataset", "parquet"):
        return None
    if (
        layout in ("files", *INDEXED_LAYOUTS)
        or type(shards) is not int
        or not 0 < shards <= MAX_SHARDS
    ):
        raise fail(f"shards is {str(shards)[:60]!r}")
    return shards


def _image(keys: dict[str, Any], fail: Callable[[str], DatasetError]) -> ImageFormat:
    transform, encoding = keys.get("transform"), keys.get("encoding")
    size, quality = keys.get("size"), keys.get("quality")
    if transform not in TRANSFORMS or encoding not in ENCODINGS:
        raise fail(f"image is {str(transform)[:60]!r}, {str(encoding)[:60]!r}")
    if not (size is None or (type(size) is int and 0 < size < 2**15)):
        raise fail(f"image.size is {str(size)[:60]!r}")
    if not (quality is None or (type(quality) is int and 0 < quality <= 100)):
        raise fail(f"image.quality is {str(quality)[:60]!r}")
    if encoding == "raw" and size is None:
        raise fail("image.encoding is raw, and image.size is not given")
    resize = keys.get("resize")
    if not (resize is None or resize in RESIZES) or (encoding == "raw" and resize == "short"):
        raise fail(f"image.resize is {str(resize)[:60]!r}")
    return ImageFormat(transform, encoding, size, quality, resize)


def _classes(entries: list[Any], fail: Callable[[str], DatasetError]) -> tuple[ImageClass, ...]:
    if not entries:
        raise fail("classes is empty")
    for entry in entries:
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(key), str) for key in ("wnid", "name")
        ):
            raise fail(f"a class is {str(entry)[:60]!r}")
        if not is_plain_name(entry["wnid"]):
            raise fail(f"a class is called {entry['wnid'][:60]!r}")
    if len({entry["wnid"] for entry in entries}) != len(entries):
        raise fail("two classes have the same wnid")
    return tuple(ImageClass(entry["wnid"], entry["name"]) for entry in entries)


def _quantiles(keys: dict[str, Any], fail: Callable[[str], DatasetError]) -> dict[str, int]:
    if set(keys) != set(QUANTILES) or any(
        type(value) is not int or value < 0 for value in keys.values()
    ):
        raise fail(f"record_bytes_quantiles is {str(keys)[:60]!r}")
    return keys


def _quarantined(
    entries: object, fail: Callable[[str], DatasetError]
) -> tuple[dict[str, str], ...]:
    if not isinstance(entries, list):
        raise fail("quarantined is not a list")
    for entry in entries:
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(key), str) for key in ("name", "reason")
        ):
            raise fail(f"a quarantined image is {str(entry)[:60]!r}")
    return tuple({"name": entry["name"], "reason": entry["reason"]} for entry in entries)
