"""What threads have made: a product, who makes it, and, of pools, the products by the identity of
their objects, until the loop takes one or another task uses it.
"""

from collections.abc import Callable
from typing import Any, Final

from ioprof.instrument.span import emit

_MOST: Final = 4096


MAX_HELD: Final = 64
"""What a thread may have made that nobody has taken yet."""


class Product:
    """Something that a thread made, and that the loop may take."""

    __slots__ = ("end_ns", "maker", "number", "start_ns")

    def __init__(self, maker: "Maker", start_ns: int, number: int) -> None:
        self.maker, self.number = maker, number
        self.start_ns, self.end_ns = start_ns, 0


class Maker:
    """What a thread makes for others."""

    __slots__ = ("begin_ns", "feeds_loop", "held")

    def __init__(self) -> None:
        self.feeds_loop = False
        """The loop has taken something that it made."""
        self.begin_ns = 0
        """When it put or took an item last; what it puts next was begun then. 0: not known."""
        self.held: list[Product] = []
        """What it made before that was known."""

    def begin(self, start_ns: int, take_number: Callable[[], int]) -> Product:
        """It begins to make something, which has a number if the loop takes what it makes."""
        return Product(self, start_ns, take_number() if self.feeds_loop else -1)

    def end(self, product: Product, end_ns: int) -> None:
        """It has made it; emit what is known to be for the loop."""
        product.end_ns = end_ns
        if self.held:
            waiting = [other for other in self.held if not _emit_if_taken(other)]
            self.held = waiting[-MAX_HELD + 1 :]
        if not _emit_if_taken(product):
            self.held.append(product)


def _emit_if_taken(product: Product) -> bool:
    if product.number < 0:
        return False
    emit("fetch", product.start_ns, product.end_ns, batch=product.number)
    return True


class Products:
    """An object that was freed unseen may have left its identity to another one: so its type is
    compared too.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[type, Product]] = {}

    def add(self, result: Any, product: Product) -> None:
        """A task returned `result`."""
        if len(self._known) >= _MOST:
            self._known.pop(next(iter(self._known)), None)
        self._known[id(result)] = type(result), product

    def use(self, arguments: tuple[Any, ...]) -> None:
        """A task was given these: what they hold is not handed to the loop."""
        for argument in arguments:
            self._known.pop(id(argument), None)
            if type(argument) in (list, tuple):
                for entry in argument:
                    self._known.pop(id(entry), None)

    def take(self, item: Any) -> Product | None:
        """What the loop got; None: no thread of a pool returned it."""
        if type(item) is list:
            found = [product for entry in item if (product := self._find(entry)) is not None]
            if found:
                return max(found, key=lambda product: product.end_ns)
        return self._find(item)

    def _find(self, item: Any) -> Product | None:
        kind, product = self._known.pop(id(item), (None, None))
        return product if kind is type(item) else None
