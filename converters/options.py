"""The options of a conversion and of a generation, validated when they are constructed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from ioprof.errors import CommandError
from ioprof.format.dataset import RESIZES, TRANSFORMS, ImageFormat, is_plain_name
from ioprof.options import Option, check_options, values_of

ENCODINGS: Final = ("jpeg", "png", "raw")  # `original` images keep theirs
LABELS: Final = ("ssv",)
CROPS: Final = ("wide", "strict")
ON_ERROR: Final = ("fail", "quarantine")
ON_CORRUPT: Final = (*ON_ERROR, "accept")
FORMS: Final = ("tree", "tars")
DEFAULT_QUALITY: Final = 90
DEFAULT_SIZE: Final = 256
_MAX_SEED: Final = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    """How records are stored."""

    layout: Annotated[
        str,
        Option(
            "files: one per image. lmdb: also read by DALI. webdataset: tars. parquet: Hugging"
            " Face's form. raw: one packed file."
        ),
    ]
    labels: Annotated[
        str | None,
        Option(
            'With files: ssv also writes lists of "path label", with absolute paths.',
            choices=LABELS,
        ),
    ] = None
    shards: Annotated[
        int | None,
        Option("With lmdb: number of environments; DALI reads one per GPU.", least=1, most=10_000),
    ] = None
    shard_bytes: Annotated[
        int | None,
        Option(
            "With webdataset: largest tar, in bytes, but for a single image that is larger; with"
            " parquet: of a shard's images.",
            least=1 << 16,
            most=1 << 50,
            unset="1 GiB; 128 MiB",
        ),
    ] = None
    workers: Annotated[
        int | None, Option("Processes.", least=1, most=4096, unset="one per core")
    ] = None
    force: Annotated[bool, Option("Replace DESTINATION if ioprof made it, finished or not.")] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(LayoutOptions):
    """How to convert; raises `CommandError` for a value out of range and for options that
    contradict each other.
    """

    layout: Annotated[
        str,
        Option(
            "files: one per image. lmdb: also read by DALI. webdataset: tars. parquet: Hugging"
            " Face's form. raw: one packed file."
        ),
    ] = "files"
    image: Annotated[
        str,
        Option(
            "original: the bytes unchanged. rgb256: centre square, 256 x 256, RGB.",
            choices=TRANSFORMS,
        ),
    ] = "original"
    encoding: Annotated[
        str | None, Option("With rgb256: jpeg, png or raw.", choices=ENCODINGS, unset="jpeg")
    ] = None
    quality: Annotated[
        int | None, Option("With JPEG: 1 to 95.", least=1, most=95, unset=str(DEFAULT_QUALITY))
    ] = None
    size: Annotated[
        int | None,
        Option(
            "With rgb256: pixels of the square's side, or of the shorter side.",
            least=1,
            most=4096,
            unset=str(DEFAULT_SIZE),
        ),
    ] = None
    resize: Annotated[
        str | None,
        Option(
            "With rgb256: square, of the centre, or short: the shorter side is resized, nothing is"
            " cut off.",
            choices=RESIZES[:2],
            unset="square",
        ),
    ] = None
    crop: Annotated[
        str | None,
        Option(
            "With rgb256: strict crops before resizing, so that no pixel outside the square"
            " is used.",
            choices=CROPS,
        ),
    ] = None
    split: Annotated[str, Option("Name of the split; also selects train or val in SOURCE.")] = (
        "train"
    )
    shuffle_seed: Annotated[
        int,
        Option(
            "Seed of the order of the records, which is the same in every layout.",
            least=0,
            most=_MAX_SEED,
        ),
    ] = 0
    on_error: Annotated[
        str,
        Option(
            "If an image cannot be used: fail, or quarantine (leave it out and list it).",
            choices=ON_ERROR,
        ),
    ] = "fail"
    on_corrupt: Annotated[
        str | None,
        Option(
            "If libjpeg warns of a JPEG: fail, quarantine, or accept, as Pillow does.",
            choices=ON_CORRUPT,
            unset="as --on-error",
        ),
    ] = None
    limit: Annotated[
        int | None,
        Option(
            "Only the first N images of the shuffled order; labels stay those of all.",
            least=1,
            most=10**8,
        ),
    ] = None
    stripe: Annotated[bool, Option("On Lustre: set the recommended stripe layout.")] = False
    check_md5: Annotated[
        bool, Option("Compare the archives with the MD5 sums that ImageNet publishes.")
    ] = False

    def __post_init__(self) -> None:
        check_options(self)
        if (
            not is_plain_name(self.split)
            or self.split.startswith(".")
            or " " in self.split
            or self.split == "dataset.json"
        ):
            raise CommandError(
                f"--split {self.split!r} cannot be the name of a folder; give a name such as train"
                " or val"
            )
        self._check_encoding()
        self._check_layout()

    def _check_encoding(self) -> None:
        if self.crop == "strict" and self.resize == "short":
            raise CommandError("--crop strict needs --resize square: with short nothing is cropped")
        given = {
            "--encoding": self.encoding,
            "--size": self.size,
            "--resize": self.resize,
            "--crop": self.crop,
        }
        for option, value in given.items():
            if self.image == "original" and value is not None:
                raise CommandError(
                    f"{option} applies to --image rgb256 only: original images stay as they are"
                )
        if self.encoding == "raw" and self.resize == "short":
            raise CommandError(
                "--encoding raw needs --resize square: raw pixels do not store their width"
            )
        if self.quality is not None and self.image_format.encoding != "jpeg":
            raise CommandError(
                "--quality applies to --image rgb256 --encoding jpeg only: no other encoding has a"
                " quality"
            )

    def _check_layout(self) -> None:
        layout_options = {
            "--labels": ("files", self.labels),
            "--shards": ("lmdb", self.shards),
            "--shard-bytes": (
                self.layout if self.layout == "parquet" else "webdataset",
                self.shard_bytes,
            ),
        }
        for option, (layout, value) in layout_options.items():
            if value is not None and self.layout != layout:
                raise CommandError(f"{option} applies to --layout {layout} only")

    @property
    def accepts_corrupt(self) -> bool:
        """Whether JPEGs that libjpeg warns of are used."""
        return self.on_corrupt == "accept"

    @property
    def image_format(self) -> ImageFormat:
        """The image format as the manifest stores it."""
        if self.image == "original":
            return ImageFormat("original", "source")
        encoding, size = self.encoding or "jpeg", self.size or DEFAULT_SIZE
        quality = (self.quality or DEFAULT_QUALITY) if encoding == "jpeg" else None
        return ImageFormat(
            "rgb256",
            encoding,
            size,
            quality,
            "strict" if self.crop == "strict" else self.resize or "square",
        )


_SOURCE: Final = (
    "ILSVRC2012_img_train.tar or _val.tar, the folder that holds it, a folder of class folders,"
    " shards or records of other programs (docs/formats.md), or synthetic:N."
)


@dataclass(frozen=True, kw_only=True)
class ConversionOptions(ConvertOptions):
    """A conversion: how, what, where to, and by which processes."""

    source: Annotated[str | Path, Option(_SOURCE)] = field(kw_only=False)
    destination: Annotated[Path | str, Option("Folder to make.")] = field(kw_only=False)
    part: Annotated[
        str | None,
        Option("i/n: only part i of n, for job arrays; when all are done: ioprof convert merge."),
    ] = None
    engine: Annotated[
        str, Option("local: processes on this machine. dask: a running Dask cluster.")
    ] = "local"
    scheduler: Annotated[
        str | None, Option("With dask: the scheduler's address, or its scheduler file.")
    ] = None

    @property
    def how(self) -> ConvertOptions:
        """The options that are stored with what is made."""
        return ConvertOptions(**values_of(ConvertOptions, self))


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """What to generate; raises `CommandError` for a value out of range and for options that
    contradict each other.
    """

    images: Annotated[int, Option("Number of images.", least=1, most=10**8)] = 1000
    classes: Annotated[
        int | None, Option("Number of classes.", least=1, most=10**6, unset="10, or one per image")
    ] = None
    seed: Annotated[
        int, Option("Seed; the same seed makes the same images.", least=0, most=_MAX_SEED)
    ] = 0
    form: Annotated[
        str, Option("tree: class folders. tars: ILSVRC2012_img_train.tar.", choices=FORMS)
    ] = "tree"
    workers: Annotated[
        int | None, Option("Processes.", least=1, most=4096, unset="one per core")
    ] = None
    force: Annotated[bool, Option("Replace DESTINATION if ioprof made it.")] = False

    def __post_init__(self) -> None:
        check_options(self)
        if self.num_classes > self.images:
            raise CommandError(
                f"--classes {self.classes} with --images {self.images}: each class needs at least"
                " one image"
            )

    @property
    def num_classes(self) -> int:
        """Number of classes to generate."""
        return min(10, self.images) if self.classes is None else self.classes
