"""Bytes as a person types them, in an option."""

import re
from typing import Final

from ioprof.errors import CommandError

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s?([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_EXAMPLES: Final = "such as 112K, 512M or 2G"


def parse_bytes(option: str, text: str, least: int, most: int) -> int:
    """Bytes of `2G`, `512M`, `1.5GiB` (units are powers of 1024); raises `CommandError` for what is
    none, or out of bounds.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise CommandError(f"{option} {text[:40]!r}: give bytes with a unit, {_EXAMPLES}")
    size = round(float(found[1]) * _UNITS[found[2].lower()])
    if not least <= size <= most:
        raise CommandError(f"{option} {text!r}: give {least} to {most} bytes, {_EXAMPLES}")
    return size
