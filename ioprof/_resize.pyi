from typing import Any

_Box = tuple[int, int, int, int]

def resize(
    rgb: Any, size: tuple[int, int], box: _Box, out_size: tuple[int, int], part: _Box = ..., /
) -> bytes: ...
