"""Signals that the caller of ioprof ignores: the recorded command ignores them too, since programs
inherit that (man 2 execve).
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OPTION: Final = "ioprof_ignored"
"""Python's -X option by which the command (`native/launcher/launcher.c`) names those of
`_OF_PYTHON` that were ignored."""
_OF_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them itself when it starts, so that it no longer knows whether they were
before."""


def signals_ignored_by_caller() -> frozenset[int]:
    """Of `_OF_PYTHON` those that the option names; without it none."""
    option = sys._xoptions.get(OPTION, "")  # noqa: SLF001 - documented, in spite of its name
    named = {int(word) for word in str(option).split("+") if word.isdigit()}
    found = {
        number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN
    }
    return frozenset(found - {*_OF_PYTHON} | named)


@contextmanager
def signals_as_given(ignored: frozenset[int]) -> Iterator[bool]:
    """Have this process handle those of `_OF_PYTHON` as its caller does, for a program that is
    started in the block.

    False: nothing was done, since Python permits it in its main thread alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    before = {
        number: signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        for number in _OF_PYTHON
    }
    try:
        yield True
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def children_waited_for() -> Iterator[None]:
    """Have children stay until they are waited for in this block; where SIGCHLD is ignored the
    kernel forgets how they ended.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN
    ):
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block all signals in this thread for the block, and for good in threads that it starts
    there.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
