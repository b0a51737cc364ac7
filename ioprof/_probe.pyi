from typing import Any

OUTCOME_BYTES: int

def visit(
    kind: int,
    targets: tuple[bytes, ...] | tuple[int, ...],
    places: Any,
    outcomes: Any,
    clients: int,
    direct: bool,
    ask: bool,
    in_order: bool,
    limit_ns: int,
    limit_bytes: int,
    /,
) -> tuple[int, int, int]: ...
