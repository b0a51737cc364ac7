import os
from collections.abc import Callable
from typing import Any

from ioprof.record.ring import Nothing, Span

def span(
    kind: str,
    name: str | None = None,
    *,
    step: int = -1,
    batch: int = -1,
    bytes: int = -1,
    file: int = -1,
    offset: int = -1,
    stream: int = -1,
    source: int = 0,
) -> Span | Nothing: ...
def emit(
    kind: str,
    start_ns: int,
    end_ns: int,
    name: str | None = None,
    *,
    step: int = -1,
    batch: int = -1,
    bytes: int = -1,
    file: int = -1,
    offset: int = -1,
    stream: int = -1,
    source: int = 0,
) -> None: ...
def intern(path: str | bytes | os.PathLike[Any], /) -> int: ...
def start(path: str | bytes, header: bytes, kinds: tuple[str, ...], rehearsal: bool = False, /) -> None: ...
def stop(rehearsal: bool = False, /) -> None: ...
def is_recording() -> bool: ...
def lost() -> int: ...
def redirect(*functions: Callable[..., Any]) -> None: ...
def layout() -> list[tuple[str, str, int, int]]: ...
