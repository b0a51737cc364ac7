"""What a conversion and a generation can be asked for, checked once."""

from dataclasses import dataclass
from typing import Final

from ioprof.dataset import ImageFormat, is_plain_name
from ioprof.errors import CommandError

IMAGES: Final = ("original", "rgb256")
ENCODINGS: Final = ("jpeg", "raw")
ON_ERROR: Final = ("fail", "quarantine")
FORMS: Final = ("tree", "tars")
DEFAULT_QUALITY: Final = 90
_MAX_SEED: Final = 2**32 - 1


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert; raises `CommandError` for what does not fit together."""

    layout: str = "files"
    """A name of `LAYOUTS`."""
    image: str = "original"
    """`original`: the source's bytes untouched. `rgb256`: centre crop to the square, 256 × 256, RGB."""
    encoding: str | None = None
    """Of `rgb256`: `jpeg` (the default) or `raw`."""
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

    def __post_init__(self) -> None:
        _one_of("--image", self.image, IMAGES)
        _one_of("--on-error", self.on_error, ON_ERROR)
        _in_range("--workers", self.workers, 1, 4096)
        _in_range("--limit", self.limit, 1, 10**8)
        _in_range("--shuffle-seed", self.shuffle_seed, 0, _MAX_SEED)
        _in_range("--quality", self.quality, 1, 95)
        if not is_plain_name(self.split) or self.split.startswith(".") or " " in self.split or self.split == "dataset.json":
            raise CommandError(f"--split {self.split!r} cannot be the name of a folder; give a name such as train or val")
        self._check_encoding()

    def _check_encoding(self) -> None:
        if self.encoding is not None:
            _one_of("--encoding", self.encoding, ENCODINGS)
        if self.image == "original" and self.encoding is not None:
            raise CommandError("--encoding applies to --image rgb256 only: original images keep their own")
        if self.quality is not None and self.image_format.encoding != "jpeg":
            raise CommandError("--quality applies to --image rgb256 --encoding jpeg only: nothing else is encoded")

    @property
    def image_format(self) -> ImageFormat:
        """As the manifest says it."""
        if self.image == "original":
            return ImageFormat("original", "source")
        if self.encoding == "raw":
            return ImageFormat("rgb256", "raw", size=256)
        return ImageFormat("rgb256", "jpeg", size=256, quality=self.quality or DEFAULT_QUALITY)


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
