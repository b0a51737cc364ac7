"""Damages files at random and reads them: a reader may refuse or find other images, and raises nothing but the errors of ioprof."""

import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ioprof.converters import detect
from ioprof.converters.job.image_converter import ImageConverter, ImageTask
from ioprof.dataset import ImageFormat
from ioprof.errors import IoprofError

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


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
    """The bytes with one to four damages; most lie near the beginning, where formats keep their headers."""
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
            content[place : place + 4] = chance.choice(_NUMBERS).to_bytes(4, chance.choice(("little", "big")))
        else:
            start = chance.randrange(len(content))
            content[place:place] = content[start : start + chance.randrange(1, 600)]
    return bytes(content)


def fuzz(folder: Path, work: Path, cases: int, seed: int = 0) -> Fuzzed:
    """Damage a file of the source `folder` in each case, list the source, and read its first images."""
    found = Fuzzed()
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    for number in range(cases):
        chance = random.Random(f"{seed} {number}")
        name = chance.choice(files)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(folder, work)
        (work / name).write_bytes(damage((folder / name).read_bytes(), chance))
        began = time.perf_counter()
        try:
            kind, source = detect(work, "train")
            found.kinds[kind] += 1
            converter = ImageConverter(ImageFormat("original", "source"))
            tasks = [ImageTask(image, "") for image, _ in zip(source.images, range(8), strict=False)]
            converter(tasks)
            converter.close()
        except IoprofError as error:
            found.refused += 1
            if "\n" in str(error) or len(str(error)) > 1500:
                found.wrong.append(f"{name}, case {number} of seed {seed}: a message of {len(str(error))} characters")
        except Exception as error:
            found.wrong.append(f"{name}, case {number} of seed {seed}: {error!r}")
        found.longest_s = max(found.longest_s, time.perf_counter() - began)
        found.cases += 1
    return found
