"""Dataset scale: how many distinct bytes a job reads, as a multiple of a dataset; made by
`ioprof.converters.job.multiples`.

    2x     every record twice, under a new name or key: twice the bytes on the disk
    0.5x   half of the records, every class keeping its share
    1.5x   both

A scaled dataset is a dataset of its own, in the folder of the one that it was made of, so that
every loader and tool can read it.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ioprof.errors import CommandError
from ioprof.format.dataset import Dataset

_FORM: Final = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(x|%)", re.ASCII)
_MOST: Final = 10_000

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scale:
    """A multiple of a dataset."""

    factor: Fraction

    @classmethod
    def parse(cls, text: str) -> "Scale":
        """From `2x`, `0.5x` or `50%`; raises `CommandError`."""
        found = _FORM.fullmatch(text.strip())
        factor = Fraction(found[1]) / (100 if found[2] == "%" else 1) if found else Fraction(0)
        if not 0 < factor <= _MOST:
            raise CommandError(
                f"--dataset-scale {text!r}: give a multiple above 0 and up to {_MOST}x, such as"
                " 0.5x, 2x, 1.5x or 50%"
            )
        return cls(factor)

    @property
    def copies(self) -> int:
        """How often every record comes."""
        return int(self.factor)

    @property
    def fraction(self) -> Fraction:
        """Which part of the records comes once more, 0 to below 1."""
        return self.factor - self.copies

    @property
    def is_one(self) -> bool:
        """Whether it is the dataset itself."""
        return self.factor == 1

    def __str__(self) -> str:
        return f"{float(self.factor):.8g}x"

    def beside(self, dataset: Path) -> Path:
        """Where the scaled dataset lies."""
        return dataset.with_name(f"{dataset.name}-{self}")

    def source(self, dataset: Dataset) -> str:
        """The `source` in its manifest; equal only for the same multiple of the same bytes in the
        same layout.
        """
        return f"{self} of {dataset.name} ({dataset.layout}, {dataset.digest})"


def check_scalable(dataset: Dataset, scale: Scale) -> None:
    """Raise `CommandError` where no such multiple can be made."""
    if dataset.scale != 1:
        raise CommandError(
            f"{dataset.path}: is itself {dataset.scale:g}x of another dataset; give that one, or"
            " leave out --dataset-scale"
        )
    if scale.factor * dataset.records < 1:
        raise CommandError(
            f"--dataset-scale {scale}: is less than one of the {dataset.records} records of"
            f" {dataset.path}; give more"
        )


def balanced_subset(labels: npt.ArrayLike, fraction: Fraction | float, seed: int) -> Indices:
    """Which records make a fraction of a dataset in which every class keeps its share: ascending
    indices, (records,) int64.

    There are round(fraction × records), at least one, and of each class its share of them to within
    one record. Which ones is random, and depends on the seed and the labels alone.
    """
    known = np.asarray(labels, dtype=np.int64)
    order = np.random.default_rng(seed).permutation(len(known))
    classes, place = np.unique(known[order], return_inverse=True)
    sizes = np.bincount(place, minlength=len(classes))
    counts = _shares(sizes, max(1, round(float(fraction) * len(known))))
    by_class = np.argsort(place, kind="stable")  # random within each class
    rank_in_class = np.arange(len(known)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[by_class[rank_in_class < np.repeat(counts, sizes)]])


def _shares(sizes: Indices, total: int) -> Indices:
    """`total` divided in proportion to `sizes` (largest remainder, the first class where remainders
    are equal).
    """
    exact = sizes * total
    counts: Indices = exact // sizes.sum()
    left = total - int(counts.sum())
    counts[np.argsort(-(exact % sizes.sum()), kind="stable")[:left]] += 1
    return counts
