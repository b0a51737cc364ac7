"""Reads small files of /proc and /sys. A missing, unreadable or invalid value becomes an `Unknown`
with the reason.
"""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

_MAX_BYTES: Final = 4 << 20  # of one file; thousands of mounts take less
_MAX_TEXT_LENGTH: Final = 4096
_MAX_NUMBER: Final = 1 << 63
_REASONS: Final = {
    errno.ENOENT: "there is no {path}",
    errno.ENOTDIR: "there is no {path}",
    errno.EACCES: "{path} may not be read by this user",
    errno.EPERM: "{path} may not be read by this user",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Unknown:
    """Stands for an unknown value."""

    reason: str


@dataclass(frozen=True)
class Roots:
    """Mount points of the kernel's file systems; tests use folders of their own."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


def build_with_reasons(
    make: Callable[..., T], defaults: Mapping[str, Any] = MappingProxyType({}), **values: Any
) -> T:
    """Call `make` with these values; an `Unknown` is replaced by its default or None, and its
    reason is stored in `unknown`.
    """
    reasons = {name: value.reason for name, value in values.items() if isinstance(value, Unknown)}
    return make(
        **{
            name: defaults.get(name) if name in reasons else value for name, value in values.items()
        },
        unknown=reasons,
    )


def refusal(error: OSError, path: object) -> Unknown:
    """The reason why a file could not be read."""
    form = _REASONS.get(error.errno or 0, "{path}: {what}")
    return Unknown(form.format(path=printable_text(str(path)), what=error.strerror or error))


def read_bytes(path: Path) -> bytes | Unknown:
    """The bytes of a file, at most 4 MiB."""
    parts: list[bytes] = []
    left = _MAX_BYTES
    try:
        with open(path, "rb", buffering=0) as file:
            while left > 0 and (part := os.read(file.fileno(), min(left, 1 << 16))):
                parts.append(part)
                left -= len(part)
    except OSError as error:
        return refusal(error, path)
    except ValueError:  # a NUL in the path
        return Unknown(f"{printable_text(str(path))} is not a path")
    return b"".join(parts)


def read_text(path: Path) -> str | Unknown:
    """The text of a file without surrounding whitespace; bytes that are not UTF-8 become
    escapes.
    """
    data = read_bytes(path)
    if isinstance(data, Unknown):
        return data
    return data.decode("utf-8", "backslashreplace").strip()


def read_number(path: Path, scale: int = 1) -> int | Unknown:
    """The non-negative integer in a file, times `scale`."""
    return parse_number(read_text(path), str(path), scale)


def parse_number(text: str | Unknown, what: str, scale: int = 1) -> int | Unknown:
    """The non-negative integer in a text, times `scale`; `what` names its origin in the reason."""
    if isinstance(text, Unknown):
        return text
    digits = (
        text if text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_NUMBER)) else ""
    )
    value = int(digits) * scale if digits else -1
    if 0 <= value < _MAX_NUMBER:
        return value
    return Unknown(f"{printable_text(what)} holds {printable_text(text)!r}, which is not a count")


def read_flag(path: Path) -> bool | Unknown:
    """The value of a file that holds 0 or 1."""
    value = read_number(path)
    return value if isinstance(value, Unknown) else bool(value)


def list_names(folder: Path) -> list[str]:
    """The sorted entries of a folder; empty where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def first_known(values: Iterable[T | Unknown]) -> T | Unknown:
    """The first known value; otherwise the most informative reason: any other reason before a file
    that does not exist.
    """
    reasons = []
    for value in values:
        if not isinstance(value, Unknown):
            return value
        reasons.append(value)
    return max(
        reasons,
        key=lambda reason: not reason.reason.startswith("there is no "),
        default=Unknown("no source for it"),
    )


def printable_text(text: str) -> str:
    """A text that can be written to any UTF-8 stream: other bytes as escapes, and at most as long
    as a path.
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _MAX_TEXT_LENGTH else text[: _MAX_TEXT_LENGTH - 1] + "…"
