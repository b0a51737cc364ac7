"""Tests that compare times on a machine that others use."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class WrongTimeError(AssertionError):
    """An assertion about times that does not hold."""


@contextmanager
def comparing_times() -> Iterator[None]:
    """Mark assertions that compare how long something took, or of what share of the time something is known."""
    try:
        yield
    except AssertionError as error:
        raise WrongTimeError(str(error)) from error


def again_when_wrong(test: Callable[..., None]) -> Callable[..., None]:
    """Make a test once more when an assertion within `comparing_times()` fails; it must hold then.

    While other processes have the cores, a recording may be right and its times differ from what was expected. Every other
    assertion must hold at once.
    """

    @functools.wraps(test)
    def made(**fixtures: Any) -> None:
        try:
            test(**_of_attempt(fixtures, "first"))
        except WrongTimeError as error:
            print(f"made again, since it failed: {error}")
        else:
            return
        test(**_of_attempt(fixtures, "again"))

    return made


def _of_attempt(fixtures: dict[str, Any], name: str) -> dict[str, Any]:
    """The fixtures with a folder of its own for each attempt."""
    if "tmp_path" not in fixtures:
        return fixtures
    folder = fixtures["tmp_path"] / name
    folder.mkdir()
    return {**fixtures, "tmp_path": folder}
