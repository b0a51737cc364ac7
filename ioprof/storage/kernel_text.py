"""Small files of /proc and /sys, read with care: what is not there, not permitted, or not as expected becomes a reason."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

_MOST_BYTES: Final = 4 << 20  # of one file; thousands of mounts take less
_MOST_SHOWN: Final = 4096
_GREATEST: Final = 1 << 63
_REASONS: Final = {
    errno.ENOENT: "there is no {path}",
    errno.ENOTDIR: "there is no {path}",
    errno.EACCES: "{path} may not be read by this user",
    errno.EPERM: "{path} may not be read by this user",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Unknown:
    """Stands for a value that could not be had."""

    reason: str


@dataclass(frozen=True)
class Roots:
    """Where the kernel's own file systems are; others than the real ones in tests."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


def told(make: Callable[..., T], defaults: Mapping[str, Any] = MappingProxyType({}), **values: Any) -> T:
    """An object of these values; for one that is `Unknown` it has a default or None, and the reason stands in its `unknown`."""
    reasons = {name: value.reason for name, value in values.items() if isinstance(value, Unknown)}
    return make(**{name: defaults.get(name) if name in reasons else value for name, value in values.items()}, unknown=reasons)


def refusal(error: OSError, path: object) -> Unknown:
    """Why a file could not be read, in words."""
    form = _REASONS.get(error.errno or 0, "{path}: {what}")
    return Unknown(form.format(path=shown(str(path)), what=error.strerror or error))


def data_of(path: Path) -> bytes | Unknown:
    """The bytes of a file, as many as a sane one has."""
    try:
        with open(path, "rb", buffering=0) as file:
            return _all(file.fileno())
    except OSError as error:
        return refusal(error, path)
    except ValueError:  # a NUL in the path
        return Unknown(f"{shown(str(path))} is no path")


def text_of(path: Path) -> str | Unknown:
    """The text of a file without the blanks around it; bytes that are no text become escapes."""
    data = data_of(path)
    if isinstance(data, Unknown):
        return data
    return data.decode("utf-8", "backslashreplace").strip()


def number_of(path: Path, scale: int = 1) -> int | Unknown:
    """The whole number that a file holds, not negative, times `scale`."""
    return number_in(text_of(path), str(path), scale)


def number_in(text: str | Unknown, what: str, scale: int = 1) -> int | Unknown:
    """The same of a text; `what` is where it is from."""
    if isinstance(text, Unknown):
        return text
    digits = text if text.isascii() and text.isdigit() and len(text) <= len(str(_GREATEST)) else ""
    value = int(digits) * scale if digits else -1
    return value if 0 <= value < _GREATEST else Unknown(f"{shown(what)} holds {shown(text)!r}, which is no count")


def flag_of(path: Path) -> bool | Unknown:
    """What a file says that holds 0 or 1."""
    value = number_of(path)
    return value if isinstance(value, Unknown) else bool(value)


def names_in(folder: Path) -> list[str]:
    """The entries of a folder in order; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def first_known(values: Iterable[T | Unknown]) -> T | Unknown:
    """The first value that is known; else the reason that says most: a refusal rather than a file that is not there."""
    reasons = []
    for value in values:
        if not isinstance(value, Unknown):
            return value
        reasons.append(value)
    return max(reasons, key=lambda reason: not reason.reason.startswith("there is no "), default=Unknown("nothing says so"))


def shown(text: str) -> str:
    """A text that any stream can take: what was no UTF-8 as escapes, and no longer than a path can be."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


def _all(descriptor: int) -> bytes:
    parts = []
    left = _MOST_BYTES
    while left > 0 and (part := os.read(descriptor, min(left, 1 << 16))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
