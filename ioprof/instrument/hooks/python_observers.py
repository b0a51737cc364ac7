"""The observers of `native/spans/observers.h` in Python, where `ring` writes: the same spans, at a
higher cost.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.instrument.span import emit

Function = Callable[..., Any]

SHORT_NS: Final = 5_000
"""Calls of decoders that take less are added up."""

GAP_NS: Final = 2_000
"""Shorter time between two operations of a pipeline belongs to the second."""

HELD_NS: Final = 1_000_000
"""Time for which they are held back."""


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.batch = -1
        self.transforming = False
        self.operating = False
        self.begin_ns = 0
        self.name: str | None = None
        self.loading = False
        self.decodes = False
        self.calling = False
        self.fetching = False
        self.decoding = False
        self.held_ns: dict[str, int] = {}
        self.held_start_ns = 0
        self.held_end_ns = 0


class _State:
    """One per process, as in the extension."""

    is_on = is_asleep = False
    wake: Callable[[], None] = staticmethod(lambda: None)
    per_thread = _PerThread()


def watch(is_on: bool, is_asleep: bool, wake: Callable[[], None], /) -> None:
    """Whether observers record, and whether they call `wake` before that."""
    _State.is_on, _State.is_asleep, _State.wake = is_on, is_asleep, staticmethod(wake)


def forget() -> None:
    """Drop what threads are doing."""
    _State.per_thread = _PerThread()


def makes(number: int, /) -> None:
    """From now on what this thread does is for the batch of that number; -1: for none."""
    _write_held(_State.per_thread)
    _State.per_thread.batch = number


def fetches(is_fetching: bool, /) -> None:
    """Whether this thread now fetches a batch: calls of modules are then not observed."""
    _State.per_thread.fetching = is_fetching


def decoded(start_ns: int, end_ns: int, name: str | None, /) -> None:
    """Record that this thread decoded an image, which is no part of a transform."""
    thread = _State.per_thread
    _write_held(thread)
    _cut_transform(thread, start_ns, end_ns)
    emit("decode", start_ns, end_ns, name, batch=thread.batch)


def interrupted(start_ns: int, end_ns: int, /) -> None:
    """What this thread did meanwhile is no part of a transform that is in progress."""
    _cut_transform(_State.per_thread, start_ns, end_ns)


def _cut_transform(thread: _PerThread, start_ns: int, end_ns: int) -> None:
    """A transform that is under way continues after a decode."""
    if thread.transforming:
        if thread.begin_ns < start_ns:
            emit("transform", thread.begin_ns, start_ns, thread.name, batch=thread.batch)
        thread.begin_ns = end_ns


def _write_held(thread: _PerThread) -> None:
    if not thread.held_ns:
        return
    end_ns = thread.held_end_ns
    _cut_transform(thread, end_ns - sum(thread.held_ns.values()), end_ns)
    while thread.held_ns:
        name, sum_ns = thread.held_ns.popitem()
        emit("decode", end_ns - sum_ns, end_ns, name, batch=thread.batch)
        end_ns -= sum_ns


def _add_decode(thread: _PerThread, start_ns: int, end_ns: int, name: str) -> None:
    if end_ns - start_ns >= SHORT_NS:
        decoded(start_ns, end_ns, name)
        return
    if thread.held_ns and end_ns - thread.held_start_ns > HELD_NS:
        _write_held(thread)
    if not thread.held_ns:
        thread.held_start_ns = start_ns
    thread.held_ns[name] = thread.held_ns.get(name, 0) + end_ns - start_ns
    thread.held_end_ns = end_ns


def _result_or(call: Callable[[], Any], otherwise: Any) -> Any:
    """What a call returns; `otherwise` where it raises, which is no error of the job's."""
    try:
        return call()
    except Exception:
        return otherwise


def operating(original: Function, is_alone: bool, /) -> Function:
    """An observer of a method that is an operation of a pipeline: its spans have the name of the
    object's class.

    `is_alone`: also outside of pipelines.
    """

    def operate(*args: Any, **kwargs: Any) -> Any:
        thread = _State.per_thread
        if (
            thread.operating
            or thread.decoding
            or not _State.is_on
            or not args
            or not (is_alone or thread.transforming)
        ):
            return original(*args, **kwargs)
        if _State.is_asleep:
            _State.wake()
        _write_held(thread)
        is_outermost, outer, start_ns = not thread.transforming, thread.name, monotonic_ns()
        if is_outermost:
            thread.begin_ns = start_ns
        elif start_ns - thread.begin_ns >= GAP_NS:
            _cut_transform(thread, start_ns, start_ns)
        thread.transforming = thread.operating = True
        thread.name = type(args[0]).__name__
        try:
            return original(*args, **kwargs)
        finally:
            end_ns = monotonic_ns()
            if thread is _State.per_thread:
                _write_held(thread)
                _cut_transform(thread, end_ns, end_ns)
            thread.operating, thread.transforming, thread.name = False, not is_outermost, outer

    return operate


def transforming(original: Function, name: str | None = None, /) -> Function:
    """An observer of a function that transforms a sample; `name` is that of its spans."""

    def transform(*args: Any, **kwargs: Any) -> Any:
        thread = _State.per_thread
        if thread.transforming or thread.decoding or not _State.is_on:
            return original(*args, **kwargs)
        if _State.is_asleep:
            _State.wake()
        _write_held(thread)
        thread.transforming = True
        thread.name = name
        thread.begin_ns = monotonic_ns()
        try:
            return original(*args, **kwargs)
        finally:
            end_ns = monotonic_ns()
            if thread is _State.per_thread:
                _write_held(thread)
            thread.transforming = False
            if thread is _State.per_thread and thread.begin_ns < end_ns:
                emit("transform", thread.begin_ns, end_ns, name, batch=thread.batch)

    return transform


def loading(original: Function, /) -> Function:
    """An observer of the `load` of a class of Pillow's images."""

    def load(image: Any, *args: Any, **kwargs: Any) -> Any:
        thread = _State.per_thread
        if thread.decoding or not _State.is_on:
            return original(image, *args, **kwargs)
        has_tiles = _result_or(lambda: bool(image.tile), False)
        if thread.loading:  # a format's own load, which calls the common one
            thread.decodes = thread.decodes or has_tiles
            return original(image, *args, **kwargs)
        thread.loading, thread.decodes = True, has_tiles
        start_ns = monotonic_ns()
        try:
            return original(image, *args, **kwargs)
        finally:
            end_ns = monotonic_ns()
            thread.loading = False
            if thread is _State.per_thread and thread.decodes:
                if _State.is_asleep:
                    _State.wake()
                decoded(start_ns, end_ns, _result_or(lambda: image.format, None))

    return load


def calling(
    original: Function, enter: Callable[[Any, tuple[Any, ...]], bool], leave: Callable[[], None], /
) -> Function:
    """An observer of the call of a module: an outermost one calls `enter` before, and `leave` after
    it if that returned True.
    """
    # torch is there, since this is one of its classes
    from ioprof.instrument.hooks.pytorch.compiler import (
        is_compiling,
    )

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        thread = _State.per_thread
        if thread.calling or thread.fetching or thread.transforming or not _State.is_on:
            return original(self, *args, **kwargs)
        thread.calling = True
        is_observed = _result_or(lambda: enter(self, (*args, *kwargs.values())), False)
        try:
            return original(self, *args, **kwargs)
        finally:
            thread.calling = False
            if is_observed and thread is _State.per_thread:
                _result_or(leave, None)

    return call


def decoding(original: Function, name: str, /) -> Function:
    """An observer of a function that decodes; its spans have that name."""

    def decode(*args: Any, **kwargs: Any) -> Any:
        return _observe_decode(name, original, *args, **kwargs)

    return decode


def decoding_items(original: Function, name: str, /) -> Function:
    """An observer of a function that returns an iterator, whose next() decodes."""

    def decode(*args: Any, **kwargs: Any) -> Any:
        result = _observe_decode(name, original, *args, **kwargs)
        is_observed = (
            _State.is_on and not _State.per_thread.decoding and isinstance(result, Iterator)
        )
        return _Items(result, name) if is_observed else result

    return decode


class _Items:
    """An iterator whose items are decoded when they are asked for; every other attribute is that of
    the observed one.
    """

    def __init__(self, original: Iterator[Any], name: str) -> None:
        self._ioprof_observes, self._ioprof_name = original, name

    def __iter__(self) -> "_Items":
        return self

    def __next__(self) -> Any:
        return _observe_decode(self._ioprof_name, self._ioprof_observes.__next__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ioprof_observes, name)


def _observe_decode(name: str, original: Function, /, *args: Any, **kwargs: Any) -> Any:
    thread = _State.per_thread
    if thread.decoding or thread.loading or not _State.is_on:
        return original(*args, **kwargs)
    if _State.is_asleep:
        _State.wake()
    thread.decoding = True
    start_ns = monotonic_ns()
    try:
        return original(*args, **kwargs)
    finally:
        end_ns = monotonic_ns()
        thread.decoding = False
        if thread is _State.per_thread:
            _add_decode(thread, start_ns, end_ns, name)


def type_modified(changed: type, /) -> None:
    """Raises TypeError: Python alone cannot tell the interpreter that a type's dictionary was
    changed.
    """
    raise TypeError(f"{changed.__name__} cannot be observed without the extension")
