from typing import Any

def resize_planes(
    rgb: Any,
    size: tuple[int, int],
    box: tuple[int, int, int, int],
    out: Any,
    out_size: tuple[int, int],
    flipped: bool,
    plain: bool = False,
    /,
) -> None: ...
