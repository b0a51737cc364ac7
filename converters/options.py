"""What a conversion and a generation can be asked for, checked once."""

from dataclasses import dataclass
from typing import Final

from ioprof.dataset import RESIZES, TRANSFORMS, ImageFormat, is_plain_name
from ioprof.errors import CommandError

ENCODINGS: Final = ("jpeg", "png", "raw")  # that of original images is not chosen
LABELS: Final = ("ssv",)
ON_ERROR: Final = ("fail", "quarantine")
FORMS: Final = ("tree", "tars")
DEFAULT_QUALITY: Final = 90
DEFAULT_SIZE: Final = 256
_MAX_SEED: Final = 2**32 - 1


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert; raises `CommandError` for what does not fit together."""

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
    """Processes; null: one per core that may be used. With one, all work is done in this process."""
    shuffle_seed: int = 0
    """Of the one shuffle that decides the order of the records in every layout."""
    on_error: str = "fail"
    """For an image that cannot be used. `fail`: end. `quarantine`: leave it out, and list it in the manifest."""
    limit: int | None = None
    """Only the first so many images of the shuffled order; labels stay those of the whole source."""
    force: bool = False
    """Replace a destination that ioprof made."""
    size: int | None = None
    """Of `rgb256`: pixels of the square's side, or of the shorter side; 256 unless given."""
    resize: str | None = None
    """Of `rgb256`: `square` (the default) cuts the centred square out first; `short` resizes the shorter side instead."""
    labels: str | None = None
    """`ssv`: also write SPLIT.ssv and label_table.ssv, "path label" and "wnid label", with absolute paths. Of `files` only."""
    shards: int | None = None
    """Of `lmdb`: environments; DALI reads one of them per GPU without walking through the others."""
    shard_bytes: int | None = None
    """Of `webdataset`: a tar ends before it gets larger, unless one image is; 1 GiB unless given."""
    stripe: bool = False
    """On Lustre: set the stripe layout that suits the files, before they are written."""
    check_md5: bool = False
    """Compare the MD5 of ImageNet's own archives with what is known of them, before work starts."""

    def __post_init__(self) -> None:
        _one_of("--image", self.image, TRANSFORMS)
        _one_of("--on-error", self.on_error, ON_ERROR)
        _in_range("--workers", self.workers, 1, 4096)
        _in_range("--limit", self.limit, 1, 10**8)
        _in_range("--shuffle-seed", self.shuffle_seed, 0, _MAX_SEED)
        _in_range("--quality", self.quality, 1, 95)
        if not is_plain_name(self.split) or self.split.startswith(".") or " " in self.split or self.split == "dataset.json":
            raise CommandError(f"--split {self.split!r} cannot be the name of a folder; give a name such as train or val")
        self._check_encoding()
        self._check_layout()

    def _check_encoding(self) -> None:
        if self.encoding is not None:
            _one_of("--encoding", self.encoding, ENCODINGS)
        if self.resize is not None:
            _one_of("--resize", self.resize, RESIZES)
        for option, value in {"--encoding": self.encoding, "--size": self.size, "--resize": self.resize}.items():
            if self.image == "original" and value is not None:
                raise CommandError(f"{option} applies to --image rgb256 only: original images stay as they are")
        if self.encoding == "raw" and self.resize == "short":
            raise CommandError("--encoding raw needs --resize square: raw pixels do not say how wide they are")
        _in_range("--size", self.size, 1, 4096)
        if self.quality is not None and self.image_format.encoding != "jpeg":
            raise CommandError("--quality applies to --image rgb256 --encoding jpeg only: nothing else is encoded")

    def _check_layout(self) -> None:
        if self.labels is not None:
            _one_of("--labels", self.labels, LABELS)
        of_layout = {
            "--labels": ("files", self.labels),
            "--shards": ("lmdb", self.shards),
            "--shard-bytes": ("webdataset", self.shard_bytes),
        }
        for option, (layout, value) in of_layout.items():
            if value is not None and self.layout != layout:
                raise CommandError(f"{option} applies to --layout {layout} only")
        _in_range("--shards", self.shards, 1, 10_000)
        _in_range("--shard-bytes", self.shard_bytes, 1 << 16, 1 << 50)

    @property
    def image_format(self) -> ImageFormat:
        """As the manifest says it."""
        if self.image == "original":
            return ImageFormat("original", "source")
        encoding, size = self.encoding or "jpeg", self.size or DEFAULT_SIZE
        quality = (self.quality or DEFAULT_QUALITY) if encoding == "jpeg" else None
        return ImageFormat("rgb256", encoding, size, quality, self.resize or "square")


@dataclass(frozen=True)
class GenerateOptions:
    """What to generate; raises `CommandError` for what does not fit together."""

    images: int = 1000
    classes: int | None = None
    """Null: ten, or fewer if there are fewer images."""
    seed: int = 0
    """The same seed gives the same bytes, whatever the number of workers, with the same versions of NumPy and Pillow."""
    form: str = "tree"
    """`tree`: class folders. `tars`: ILSVRC2012_img_train.tar, a tar of one tar per class."""
    workers: int | None = None
    """Processes; null: one per core that may be used."""
    force: bool = False
    """Replace a destination that ioprof made."""

    def __post_init__(self) -> None:
        _in_range("--images", self.images, 1, 10**8)
        _in_range("--classes", self.classes, 1, 10**6)
        _in_range("--seed", self.seed, 0, _MAX_SEED)
        _in_range("--workers", self.workers, 1, 4096)
        _one_of("--form", self.form, FORMS)
        if self.num_classes > self.images:
            raise CommandError(f"--classes {self.classes} with --images {self.images}: each class needs an image at least")

    @property
    def num_classes(self) -> int:
        """How many there will be."""
        return min(10, self.images) if self.classes is None else self.classes


def _one_of(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise CommandError(f"{option} {value!r}: choose one of {', '.join(choices)}")


def _in_range(option: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise CommandError(f"{option} {value}: give a number from {low} to {high}")
