"""The Python twin of `native/observers.h`: the same spans, dearer, where no compiler was found."""

import threading
from collections.abc import Callable
from typing import Any

from ioprof.clock import monotonic_ns
from ioprof.record.span import emit

Function = Callable[..., Any]


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.batch = -1
        self.transforming = False
        self.begin_ns = 0
        self.loading = False
        self.decodes = False


class _State:
    is_on = is_asleep = False
    wake: Callable[[], None] = staticmethod(lambda: None)
    thread = _OfThread()


def watch(is_on: bool, is_asleep: bool, wake: Callable[[], None], /) -> None:
    """Whether observers record, and whether they call `wake` before that."""
    _State.is_on, _State.is_asleep, _State.wake = is_on, is_asleep, staticmethod(wake)


def forget() -> None:
    """Forget what threads had under way."""
    _State.thread = _OfThread()


def makes(number: int, /) -> None:
    """From now on what this thread observes is of the batch of that number; -1: of none."""
    _State.thread.batch = number


def decoded(start_ns: int, end_ns: int, name: str | None, /) -> None:
    """Record that this thread decoded an image, which is no part of a transform."""
    here = _State.thread
    if here.transforming:
        if here.begin_ns < start_ns:
            emit("transform", here.begin_ns, start_ns, batch=here.batch)
        here.begin_ns = end_ns
    emit("decode", start_ns, end_ns, name, batch=here.batch)


def _found(ask: Callable[[], Any], otherwise: Any) -> Any:
    """What an image says of itself; where it fails to, that is not the job's concern."""
    try:
        return ask()
    except Exception:
        return otherwise


def transforming(original: Function, /) -> Function:
    """An observer of a function that makes new pixels of a sample's."""

    def transform(*args: Any, **kwargs: Any) -> Any:
        here = _State.thread
        if here.transforming or not _State.is_on:
            return original(*args, **kwargs)
        if _State.is_asleep:
            _State.wake()
        here.transforming = True
        here.begin_ns = monotonic_ns()
        try:
            return original(*args, **kwargs)
        finally:
            end_ns = monotonic_ns()
            here.transforming = False
            if here is _State.thread and here.begin_ns < end_ns:
                emit("transform", here.begin_ns, end_ns, batch=here.batch)

    return transform


def loading(original: Function, /) -> Function:
    """An observer of the `load` of a class of Pillow's images."""

    def load(image: Any, *args: Any, **kwargs: Any) -> Any:
        here = _State.thread
        if not _State.is_on:
            return original(image, *args, **kwargs)
        has_tiles = _found(lambda: bool(image.tile), False)
        if here.loading:  # a format's own load, which calls the common one
            here.decodes = here.decodes or has_tiles
            return original(image, *args, **kwargs)
        here.loading, here.decodes = True, has_tiles
        start_ns = monotonic_ns()
        try:
            return original(image, *args, **kwargs)
        finally:
            end_ns = monotonic_ns()
            here.loading = False
            if here is _State.thread and here.decodes:
                if _State.is_asleep:
                    _State.wake()
                decoded(start_ns, end_ns, _found(lambda: image.format, None))

    return load
