"""Damages files at random and reads them: a reader may refuse or find other images, and raises
nothing but the errors of ioprof."""

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from ioprof.converters import (
    ConvertOptions,
    Part,
    detect,
    plan_verification,
    run_conversion,
    run_merge,
)
from ioprof.converters.job.image_converter import ImageConverter, ImageTask
from ioprof.errors import IoprofError
from ioprof.format.dataset import Dataset, ImageFormat
from ioprof.loaders import check_loader, make_loader
from ioprof.loaders.base import QUARANTINE, LoaderOptions
from ioprof.loaders.dali_pipelines import is_installed
from ioprof.reporter import Advance

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_VALUES: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        0,
        1,
        -1,
        3,
        2**31,
        2**63,
        2**64,
        10**40,
        1e308,
        float("nan"),
        float("inf"),
        0.5,
        "",
        "x",
        "../x",
        "\0",
        "\ud800",
    ),
    *("n" * 5000, "1" * 5000, "a\nb", [], {}, [None], {"name": 1}, [[[]]], {"": {}}),
)
_LONGEST_MESSAGE: Final = 1500

Read = Callable[[Path], str]
"""Reads what lies in a folder, in every way, and returns what it was; raises `IoprofError` where
that is refused."""


@dataclass
class Fuzzed:
    """What became of the cases."""

    cases: int = 0
    refused: int = 0
    """Cases in which the source was refused as a whole."""
    wrong: list[str] = field(default_factory=list)
    """Cases that raised something else, with their seed."""
    longest_s: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)


def damage(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one to four damages; most lie near the beginning, where formats keep their
    headers."""
    content = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if not content:
            break
        end = chance.choice((16, 64, 512, len(content), len(content), len(content)))
        place = chance.randrange(min(end, len(content)))
        what = chance.randrange(7)
        if what == 0:
            content[place] ^= 1 << chance.randrange(8)
        elif what == 1:
            content[place] = chance.randrange(256)
        elif what == 2:
            del content[place:]
        elif what == 3:
            del content[place : place + chance.randrange(1, 64)]
        elif what == 4:
            content[place:place] = chance.randbytes(chance.randrange(1, 64))
        elif what == 5:
            content[place : place + 4] = chance.choice(_NUMBERS).to_bytes(
                4, chance.choice(("little", "big"))
            )
        else:
            start = chance.randrange(len(content))
            content[place:place] = content[start : start + chance.randrange(1, 600)]
    return bytes(content)


def damage_json(data: bytes, chance: random.Random) -> bytes:
    """JSON in which one to three values are others, or are missing: bytes damaged at random are
    mostly no JSON."""
    content = json.loads(data)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(content))
        if not places:
            break
        holder, key = chance.choice(places)
        if chance.randrange(4):
            holder[key] = deepcopy(chance.choice(_VALUES))
        else:
            del holder[key]
    return json.dumps(content).encode()


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    keys = (
        content.keys()
        if isinstance(content, dict)
        else range(len(content))
        if isinstance(content, list)
        else ()
    )
    for key in keys:
        yield content, key
        yield from _places(content[key])


def fuzz(
    folder: Path,
    work: Path,
    cases: int,
    seed: int = 0,
    read: Read | None = None,
    pattern: str = "*",
) -> Fuzzed:
    """Damage a file of `folder` whose name matches in each case, and read what is left; without
    `read` as a source of images."""
    found = Fuzzed()
    files = sorted(path.relative_to(folder) for path in folder.rglob(pattern) if path.is_file())
    for number in range(cases):
        chance = random.Random(f"{seed} {number}")
        name = chance.choice(files)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(folder, work)
        is_json = name.suffix == ".json" and chance.randrange(4) > 0
        (work / name).write_bytes(
            (damage_json if is_json else damage)((folder / name).read_bytes(), chance)
        )
        began = time.perf_counter()
        try:
            found.kinds[(read or read_source)(work)] += 1
        except IoprofError as error:
            found.refused += 1
            if "\n" in str(error) or len(str(error)) > _LONGEST_MESSAGE:
                found.wrong.append(
                    f"{name}, case {number} of seed {seed}: a message of {len(str(error))}"
                    " characters"
                )
        except Exception as error:
            found.wrong.append(f"{name}, case {number} of seed {seed}: {error!r}")
        found.longest_s = max(found.longest_s, time.perf_counter() - began)
        found.cases += 1
    return found


def read_source(work: Path) -> str:
    """List a source, and read its first images."""
    kind, source = detect(work, "train")
    converter = ImageConverter(ImageFormat("original", "source"))
    tasks = [ImageTask(image, "") for image, _ in zip(source.images, range(8), strict=False)]
    converter(tasks)
    converter.close()
    return kind


def read_dataset(work: Path, loader: str | None = None) -> str:
    """Verify a dataset, and read its first batches by a loader."""
    dataset = Dataset.load(work)
    with suppress(IoprofError):
        found = plan_verification(work, deep=True, workers=1).run()
        assert not any("\n" in text or len(text) > _LONGEST_MESSAGE for text in found.problems)
    options = LoaderOptions(4, min(2, dataset.records), workers=0, crop=16, on_corrupt=QUARANTINE)
    if loader == "dali":
        options = LoaderOptions(4, 2, workers=1, crop=16)
    check_loader(loader or dataset.layout, dataset, options)
    for _ in make_loader(loader or dataset.layout, dataset, options):
        pass
    return dataset.layout


# ------------------------------------------------------------------------ what ioprof itself leaves


class _Interrupting:
    """Interrupts a conversion after some images."""

    def __init__(self, images: int) -> None:
        self._left = images

    def say(self, text: str) -> None:
        pass

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Advance]:
        yield self._advance

    def _advance(self, count: int, /) -> None:
        self._left -= count
        if self._left < 0:
            raise KeyboardInterrupt


def _with_bad_images(images: Path, tree: Path) -> Path:
    """The images as a tree of class folders, a quarter of them without their end."""
    for number, path in enumerate(sorted(images.iterdir())):
        folder = tree / path.name.partition("_")[0]
        folder.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        (folder / path.name).write_bytes(data if number % 4 else data[: len(data) // 3])
    return tree


def write_raw(images: Path, folder: Path) -> Read:
    """A dataset of the layout `raw`, whose manifest lists quarantined images."""
    return _write_dataset(images, folder, "raw")


def write_tars(images: Path, folder: Path) -> Read:
    """Tars with DALI's index beside each."""
    return _write_dataset(images, folder, "webdataset")


def _write_dataset(images: Path, folder: Path, layout: str) -> Read:
    tree = _with_bad_images(images, folder.with_name("tree"))
    run_conversion(tree, folder, ConvertOptions(layout=layout, workers=1, on_error="quarantine"))
    assert Dataset.load(folder).quarantined
    return read_dataset


def write_tar_index(images: Path, folder: Path) -> Read:
    """The same, to be read by DALI, which alone reads the index."""
    if not is_installed():
        pytest.skip("DALI is not installed (pip install ioprof[dali])")
    _write_dataset(images, folder, "webdataset")
    return partial(read_dataset, loader="dali")


def write_parts(images: Path, folder: Path) -> Read:
    """Two finished parts, with quarantined images; reading them is to merge them."""
    tree, options = (
        _with_bad_images(images, folder.with_name("tree")),
        ConvertOptions(workers=1, on_error="quarantine"),
    )
    for part in ("1/2", "2/2"):
        run_conversion(tree, folder / "dataset", options, Part.parse(part))

    def merge(work: Path) -> str:
        run_merge(work / "dataset", workers=1)
        return read_dataset(work / "dataset")

    return merge


def write_interrupted(images: Path, folder: Path) -> Read:
    """A conversion that was interrupted, whose journal has quarantined images; reading it is to go
    on with it."""
    tree = _with_bad_images(images, folder.with_name("tree"))
    options = ConvertOptions(workers=1, on_error="quarantine", layout="raw")
    with suppress(KeyboardInterrupt):
        run_conversion(
            tree,
            folder / "dataset",
            options,
            reporter=_Interrupting(len(list(images.iterdir())) // 2),
        )
    assert not (folder / "dataset").exists()

    def resume(work: Path) -> str:
        run_conversion(tree, work / "dataset", options)
        return read_dataset(work / "dataset")

    return resume


OWN: Final[dict[str, tuple[Callable[[Path, Path], Read], str]]] = {
    "raw": (write_raw, "*"),
    "raw manifest": (write_raw, "dataset.json"),
    "parts": (write_parts, "part.json"),
    "part journals": (write_parts, "journal"),
    "interrupted": (write_interrupted, "*"),
    "tars": (write_tars, "*.tar"),
    "tar index": (write_tar_index, "*.idx"),
}
"""What ioprof itself leaves: what writes it, of images in a folder; and the files that are
damaged."""
