"""Checks DALI's index of a tar: DALI trusts its numbers, and a wrong one crashes the process.

The members of a tar that ioprof wrote follow each other without a gap. So an index is right where
each member begins where the one before ends and the last one ends where the tar does, and no header
of the tar is read for that.
"""

import re
from pathlib import Path
from typing import Final

from ioprof.errors import DatasetError

SUFFIX: Final = ".idx"
_BLOCK: Final = 512
_END_BYTES: Final = 2 * _BLOCK
_NUMBER: Final = r"(\d{1,15})"
_RECORD: Final = re.compile(
    rf"(jpg|png|rgb) {_NUMBER} {_NUMBER} (\d{{8,18}})\.\1 cls {_NUMBER} {_NUMBER} \4\.cls json"
    rf" {_NUMBER} {_NUMBER} \4\.json",
    re.ASCII,
)


def check_tar_index(tar: Path) -> None:
    """Raise `DatasetError` where the index beside a tar is not that of this tar; nothing is wrong
    where there is none.
    """
    path = tar.with_suffix(SUFFIX)
    try:
        if not path.is_file():
            return
        head, *lines = path.read_bytes().decode("ascii", errors="replace").split("\n")
        end = tar.stat().st_size - _END_BYTES
    except OSError as error:
        raise DatasetError(
            f"{path}: cannot be read ({error.strerror}); {_otherwise(path)}"
        ) from None
    if head != f"v1.2 {len(lines) - 1}" or lines.pop():
        raise _wrong(path, 1)
    place, key = 0, None
    for number, line in enumerate(lines, start=2):
        found = _RECORD.fullmatch(line)
        if found is None or (key is not None and int(found[4]) != key + 1):
            raise _wrong(path, number)
        key = int(found[4])
        for offset, size in ((found[2], found[3]), (found[5], found[6]), (found[7], found[8])):
            if int(offset) != place + _BLOCK:
                raise _wrong(path, number)
            place = int(offset) - (-int(size) // _BLOCK) * _BLOCK
    if place != end:
        raise _wrong(path, len(lines) + 1)


def _wrong(path: Path, line: int) -> DatasetError:
    return DatasetError(f"{path}: line {line} is not what belongs to this tar; {_otherwise(path)}")


def _otherwise(path: Path) -> str:
    return f"remove {path.name}, and DALI looks through the tar instead"
