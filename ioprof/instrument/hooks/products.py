"""What threads of a pool have made, by the identity of the object, until the loop takes it or another task uses it."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ioprof.instrument.hooks.handover import Product

_MOST: Final = 4096


class Products:
    """An object that was freed unseen may have left its identity to another one: so its type is compared too."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[type, Product]] = {}

    def add(self, result: Any, product: "Product") -> None:
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

    def take(self, item: Any) -> "Product | None":
        """What the loop got; None: no thread of a pool returned it."""
        if type(item) is list:
            found = [product for entry in item if (product := self._find(entry)) is not None]
            if found:
                return max(found, key=lambda product: product.end_ns)
        return self._find(item)

    def _find(self, item: Any) -> "Product | None":
        kind, product = self._known.pop(id(item), (None, None))
        return product if kind is type(item) else None
