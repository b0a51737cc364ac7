"""A class of images of some library's, and what observes its methods."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
from captures import trace_of

from ioprof.instrument.hooks.patches import Patches


class Picture:
    """An image of some library's."""

    tile: Any = ()
    format = "ABC"

    def __init__(self, *tile: str) -> None:
        self.tile = [*tile]

    def load(self, *then: Callable[[], Any]) -> "Picture":
        """Decode what there is to decode."""
        self.tile = []
        for function in then:
            function()
        return self

    def resize(self, size: int = 3, *, then: Callable[[], Any] = lambda: None) -> tuple[int, Any]:
        """Compute new pixels."""
        return size, then()


def observing(module: Any) -> Iterator[Any]:
    """The module's observers, which record, and `Picture` observed by them."""
    patches = Patches()
    patches.wrap(Picture, "load", module.loading)
    patches.wrap(Picture, "resize", module.transforming)
    module.watch(True, False, lambda: None)
    try:
        yield module
    finally:
        module.watch(False, False, lambda: None)
        module.forget()
        patches.undo()
        assert not hasattr(Picture.load, "_ioprof_observes")


def spans(spool: Path) -> list[tuple[str, str | None, int | None]]:
    """Kind, name and batch of each span, in the order of their ends; none lies in another."""
    found = trace_of(spool).spans.sort("end_ns")
    assert all(
        end <= start for end, start in zip(found["end_ns"][:-1], found["start_ns"][1:], strict=True)
    )
    return found.select(pl.col("kind").cast(str), pl.col("name").cast(str), "batch").rows()


def spin() -> None:
    """Take longer than the clock's step."""
    for _ in range(1000):
        pass
