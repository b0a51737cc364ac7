"""What is asked of an extrapolation."""

from dataclasses import dataclass
from typing import Annotated

from ioprof.options import Option, check_options


@dataclass(frozen=True, kw_only=True)
class Extrapolated:
    """The whole training."""

    epochs: Annotated[int, Option("Epochs of the whole training.", least=1)] = 90
    records: Annotated[
        int | None,
        Option(
            "Samples of its dataset, such as 1281167.",
            least=1,
            unset="those of an epoch that was recorded",
        ),
    ] = None
    from_cut: Annotated[
        bool,
        Option("The recorded epochs were cut short: they had a part of the data."),
    ] = False

    def __post_init__(self) -> None:
        check_options(self)
