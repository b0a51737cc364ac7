"""The options of a conversion and of a generation, validated when they are constructed."""

from dataclasses import dataclass
from typing import Final

from ioprof.dataset import RESIZES, TRANSFORMS, ImageFormat, is_plain_name
from ioprof.errors import CommandError

ENCODINGS: Final = ("jpeg", "png", "raw")  # `original` images keep theirs
LABELS: Final = ("ssv",)
CROPS: Final = ("wide", "strict")
ON_ERROR: Final = ("fail", "quarantine")
ON_CORRUPT: Final = (*ON_ERROR, "accept")
FORMS: Final = ("tree", "tars")
DEFAULT_QUALITY: Final = 90
DEFAULT_SIZE: Final = 256
_MAX_SEED: Final = 2**32 - 1


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert; raises `CommandError` for a value out of range and for options that contradict each other."""

    layout: str = "files"
    """A name of `LAYOUTS`."""
    image: str = "original"
    """`original`: the source's bytes untouched. `rgb256`: RGB, by default the centre square at 256 × 256."""
    encoding: str | None = None
    """Of `rgb256`: `jpeg` (the default), `png` or `raw`."""
    quality: int | None = None
    """Of JPEG, 1 to 95; 90 unless given."""
    split: str = "train"
    workers: int | None = None
    """Number of processes; null: one per available core. With 1 all work is done in this process."""
    shuffle_seed: int = 0
    """Seed of the shuffle that sets the order of the records, which is the same in every layout."""
    on_error: str = "fail"
    """For an image that cannot be used. `fail`: stop. `quarantine`: skip it, and list it in the manifest."""
    limit: int | None = None
    """Convert only the first `limit` images of the shuffled order; labels stay those of the whole source."""
    force: bool = False
    """Replace a destination that ioprof made."""
    size: int | None = None
    """Of `rgb256`: pixels of the square's side, or of the shorter side; 256 unless given."""
    resize: str | None = None
    """Of `rgb256`: `square` (the default) crops the centred square first; `short` resizes the shorter side and crops nothing."""
    labels: str | None = None
    """`ssv`: also write SPLIT.ssv and label_table.ssv, "path label" and "wnid label", with absolute paths. Only for `files`."""
    shards: int | None = None
    """Of `lmdb`: number of environments; DALI reads one per GPU without scanning the others."""
    shard_bytes: int | None = None
    """Of `webdataset`: maximum size of a tar, exceeded only by a single image that is larger; 1 GiB unless given. Of `parquet`:
    maximum size of the images of a shard; 128 MiB unless given.
    """
    stripe: bool = False
    """On Lustre: set the stripe layout that fits the files before they are written."""
    crop: str | None = None
    """Of `rgb256`: `strict` cuts the square out before it is resized, so that the filter does not look outside of it."""
    check_md5: bool = False
    """Compare the MD5 of ImageNet's own archives with the published values before work starts."""

    on_corrupt: str | None = None
    """For a JPEG that libjpeg warns of. `accept`: use it, as Pillow decodes it. Null: as `on_error`."""

    def __post_init__(self) -> None:
        if self.on_corrupt is not None:
            _check_choice("--on-corrupt", self.on_corrupt, ON_CORRUPT)
        _check_choice("--image", self.image, TRANSFORMS)
        _check_choice("--on-error", self.on_error, ON_ERROR)
        _check_range("--workers", self.workers, 1, 4096)
        _check_range("--limit", self.limit, 1, 10**8)
        _check_range("--shuffle-seed", self.shuffle_seed, 0, _MAX_SEED)
        _check_range("--quality", self.quality, 1, 95)
        if not is_plain_name(self.split) or self.split.startswith(".") or " " in self.split or self.split == "dataset.json":
            raise CommandError(f"--split {self.split!r} cannot be the name of a folder; give a name such as train or val")
        self._check_encoding()
        self._check_layout()

    def _check_encoding(self) -> None:
        if self.encoding is not None:
            _check_choice("--encoding", self.encoding, ENCODINGS)
        if self.resize is not None:
            _check_choice("--resize", self.resize, RESIZES[:2])
        if self.crop is not None:
            _check_choice("--crop", self.crop, CROPS)
        if self.crop == "strict" and self.resize == "short":
            raise CommandError("--crop strict needs --resize square: with short nothing is cropped")
        given = {"--encoding": self.encoding, "--size": self.size, "--resize": self.resize, "--crop": self.crop}
        for option, value in given.items():
            if self.image == "original" and value is not None:
                raise CommandError(f"{option} applies to --image rgb256 only: original images stay as they are")
        if self.encoding == "raw" and self.resize == "short":
            raise CommandError("--encoding raw needs --resize square: raw pixels do not store their width")
        _check_range("--size", self.size, 1, 4096)
        if self.quality is not None and self.image_format.encoding != "jpeg":
            raise CommandError("--quality applies to --image rgb256 --encoding jpeg only: no other encoding has a quality")

    def _check_layout(self) -> None:
        if self.labels is not None:
            _check_choice("--labels", self.labels, LABELS)
        layout_options = {
            "--labels": ("files", self.labels),
            "--shards": ("lmdb", self.shards),
            "--shard-bytes": (self.layout if self.layout == "parquet" else "webdataset", self.shard_bytes),
        }
        for option, (layout, value) in layout_options.items():
            if value is not None and self.layout != layout:
                raise CommandError(f"{option} applies to --layout {layout} only")
        _check_range("--shards", self.shards, 1, 10_000)
        _check_range("--shard-bytes", self.shard_bytes, 1 << 16, 1 << 50)

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
        return ImageFormat("rgb256", encoding, size, quality, "strict" if self.crop == "strict" else self.resize or "square")


@dataclass(frozen=True)
class GenerateOptions:
    """What to generate; raises `CommandError` for a value out of range and for options that contradict each other."""

    images: int = 1000
    classes: int | None = None
    """Null: ten, or fewer if there are fewer images."""
    seed: int = 0
    """The same seed gives the same bytes for any number of workers, with the same versions of NumPy and Pillow."""
    form: str = "tree"
    """`tree`: class folders. `tars`: ILSVRC2012_img_train.tar, a tar of one tar per class."""
    workers: int | None = None
    """Number of processes; null: one per available core."""
    force: bool = False
    """Replace a destination that ioprof made."""

    def __post_init__(self) -> None:
        _check_range("--images", self.images, 1, 10**8)
        _check_range("--classes", self.classes, 1, 10**6)
        _check_range("--seed", self.seed, 0, _MAX_SEED)
        _check_range("--workers", self.workers, 1, 4096)
        _check_choice("--form", self.form, FORMS)
        if self.num_classes > self.images:
            raise CommandError(f"--classes {self.classes} with --images {self.images}: each class needs at least one image")

    @property
    def num_classes(self) -> int:
        """Number of classes to generate."""
        return min(10, self.images) if self.classes is None else self.classes


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise CommandError(f"{option} {value!r}: choose one of {', '.join(choices)}")


def _check_range(option: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise CommandError(f"{option} {value}: give a number from {low} to {high}")
