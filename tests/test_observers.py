"""What stands in the place of a library's function: it looks on, and cannot be told from what it observes.

All of it holds for the extension's observers and for those of the Python twin, but where only the extension's go further.
"""

import copy
import gc
import inspect
import os
import pickle
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from captures import WRITERS, recorded, trace_of
from hypothesis import given
from hypothesis import strategies as st

from ioprof.record import recorder
from ioprof.record.hooks import observers_twin
from ioprof.record.hooks.patches import Patches

native_module = pytest.importorskip("ioprof._native", reason="the extension is not built: no C compiler")

KINDS: Final = {"native": native_module, "twin": observers_twin}


def and_then(call: Callable[[], Any]) -> None:
    """Make a call, and go on for a while."""
    call()
    spin()


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


@pytest.fixture(params=KINDS)
def observers(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Observers that record, and `Picture` observed by them."""
    module = KINDS[request.param]
    yield from _observed(module)


@pytest.fixture
def native() -> Iterator[Any]:
    """The same, of the extension only."""
    yield from _observed(native_module)


def _observed(module: Any) -> Iterator[Any]:
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
    assert all(end <= start for end, start in zip(found["end_ns"][:-1], found["start_ns"][1:], strict=True))
    return found.select(pl.col("kind").cast(str), pl.col("name").cast(str), "batch").rows()


@pytest.mark.parametrize("writer", WRITERS)
def test_transforms_and_decoding_are_told_apart(tmp_path: Path, observers: Any, writer: str) -> None:
    """Decoding within a transform cuts it in two; what has nothing to decode is no span; a batch is that of its thread."""
    with recorded(tmp_path, native=WRITERS[writer]):
        Picture().resize()
        observers.makes(7)
        picture = Picture("all of it")
        picture.resize(then=lambda: [work() for work in (spin, picture.load, spin)])
        picture.load()
        observers.makes(-1)
        Picture("all of it").load()
        thread = threading.Thread(target=Picture("all of it").load)
        thread.start()
        thread.join()
        observers.decoded(10**18, 10**18 + 5, "imread")
    decode = ("decode", "ABC", None)
    cut = [("transform", None, 7), ("decode", "ABC", 7), ("transform", None, 7)]
    assert [("transform", None, None), *cut, decode, decode, ("decode", "imread", None)] == spans(tmp_path)


def original(function: Any) -> Any:
    """What an observer observes."""
    return function._ioprof_observes


def spin() -> None:
    """Take longer than the clock's step."""
    for _ in range(1000):
        pass


def test_only_the_outermost_transform_counts(tmp_path: Path, observers: Any) -> None:
    """A method that calls another one is one transform, whether it ends well or not."""
    with recorded(tmp_path, native=True):
        assert (3, (4, None)) == Picture().resize(then=lambda: Picture().resize(4))
        with pytest.raises(ZeroDivisionError):
            Picture().resize(then=lambda: 1 // 0)
        Picture().resize()
    assert [("transform", None, None)] * 3 == spans(tmp_path)


def test_a_formats_own_load_is_one_decode(tmp_path: Path, observers: Any) -> None:
    """It calls the common one; which of the two finds something to decode does not matter, nor whether it fails."""
    with recorded(tmp_path, native=True):
        late = Picture()
        late.load(Picture("all of it").load)
        Picture("all of it").load(Picture().load)
        Picture().load(Picture().load)
        with pytest.raises(ZeroDivisionError):
            Picture("all of it").load(lambda: 1 // 0)
    assert [("decode", "ABC", None)] * 3 == spans(tmp_path)


@given(size=st.integers(), tile=st.one_of(st.none(), st.lists(st.integers()), st.floats()), is_on=st.booleans())
def test_results_and_exceptions_are_the_originals(size: int, tile: Any, is_on: bool) -> None:
    """Whatever goes in and comes out, recorded or not."""
    for module in KINDS.values():
        for _ in _observed(module):
            module.watch(is_on, False, lambda: None)
            picture = Picture()
            picture.tile = tile
            assert (
                (size, None)
                == picture.resize(size)
                == Picture.resize(picture, size=size)
                == Picture.resize(self=picture, size=size)
            )
            assert picture is picture.load()
            for wrong in ({"sise": size}, {"size": size, "then": None}):
                with pytest.raises(TypeError) as observed:
                    picture.resize(**wrong)
                with pytest.raises(TypeError) as expected:
                    original(Picture.resize)(picture, **wrong)
                assert str(expected.value) == str(observed.value)
            with pytest.raises(TypeError):
                Picture.load()  # type: ignore[call-arg]


class Hostile(Picture):
    """Its attributes fail, as those of a broken file may."""

    @property
    def format(self) -> str:  # type: ignore[override]
        """Raises."""
        raise OSError("no format")


def test_attributes_that_fail_are_not_the_jobs_concern(tmp_path: Path, observers: Any) -> None:
    """Neither a name that cannot be had nor a truth that cannot be told raises anything in the job, or hides what was raised."""

    class Vague:
        def __bool__(self) -> bool:
            raise OSError("neither")

    with recorded(tmp_path, native=True):
        Hostile("all of it").load()
        with pytest.raises(ZeroDivisionError):
            Hostile("all of it").load(lambda: 1 // 0)
        vague = Picture()
        vague.tile = Vague()
        vague.load()
    assert [("decode", None, None)] * 2 == spans(tmp_path)


def test_it_is_taken_for_what_it_observes(observers: Any) -> None:
    """Name, text, signature, attributes, pickles and copies are the function's own."""
    function = original(Picture.resize)
    assert function is vars(Picture.resize).get("__wrapped__", function) is not Picture.resize
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(function, name) == getattr(Picture.resize, name)
    for ask in (inspect.signature, inspect.getsource, inspect.isfunction, inspect.isroutine, inspect.unwrap):
        assert ask(function) == ask(Picture.resize)
    assert isinstance(Picture.resize, types.FunctionType)
    assert Picture.resize is getattr(Picture().resize, "__func__")  # noqa: B009
    assert Picture.resize is pickle.loads(pickle.dumps(Picture.resize)) is copy.copy(Picture.resize)
    assert Picture.resize is weakref.ref(Picture.resize)() is vars(Picture)["resize"] is copy.deepcopy(Picture.resize)
    bound = Picture("one").resize
    assert (5, None) == pickle.loads(pickle.dumps(bound))(5)
    Picture.resize.flavour = "sweet"
    assert "sweet" == Picture.resize.flavour
    del Picture.resize.flavour
    assert not hasattr(Picture.resize, "flavour")


def test_no_traceback_shows_it(native: Any) -> None:
    """A user who reads where his job failed reads his own lines, and the library's."""
    with pytest.raises(ZeroDivisionError) as observed:
        Picture().resize(then=lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError) as expected:
        original(Picture.resize)(Picture(), then=lambda: 1 // 0)
    names = [[frame.name for frame in traceback.extract_tb(raised.tb)] for raised in (observed, expected)]
    assert names[0] == names[1]
    for attribute in ("__defaults__", "__kwdefaults__", "__code__", "__globals__", "__dict__", "__closure__"):
        assert getattr(original(Picture.resize), attribute) is getattr(Picture.resize, attribute)
    assert repr(original(Picture.resize)) == repr(Picture.resize)


def test_what_was_begun_before_is_forgotten(tmp_path: Path, observers: Any) -> None:
    """A recording that begins within calls hears nothing of them, and all of the next ones."""
    with recorded(tmp_path, native=True):
        Picture("all of it").load(lambda: Picture().resize(then=observers.forget))
        Picture("all of it").load()
    assert [("decode", "ABC", None)] == spans(tmp_path)


def test_a_child_tells_nothing_of_what_its_parent_was_at(tmp_path: Path, observers: Any) -> None:
    """One that is forked within a call records what it does itself; its parent's call goes on as if there were no child."""
    children = []

    def fork() -> None:
        children.append(os.fork())
        if children == [0]:
            observers.forget()  # as the session does in children
            recorder.start(tmp_path, native=True)

    parent = os.getpid()
    with recorded(tmp_path, native=True):
        try:
            Picture().resize(then=fork)
            if os.getpid() != parent:
                Picture("all of it").load()
        finally:
            if os.getpid() != parent:
                recorder.stop()
                os._exit(0)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
    found = trace_of(tmp_path).spans.select(pl.col("kind").cast(str), pl.col("pid") == parent)
    assert {("transform", True), ("decode", False)} == set(found.rows())


def test_a_process_that_is_asleep_wakes_when_there_is_something_to_record(observers: Any) -> None:
    """At a transform, and at a load that decodes; an alarm that fails leaves the job alone."""
    woken = []
    observers.watch(True, True, lambda: woken.append(1))
    Picture().load()
    assert [] == woken
    Picture("all of it").load()
    Picture().resize()
    assert [1, 1] == woken
    observers.watch(False, True, lambda: woken.append(1))
    Picture("all of it").load()
    Picture().resize()
    assert [1, 1] == woken


def test_an_alarm_that_fails_leaves_the_job_alone(native: Any) -> None:
    """It raises nothing there."""
    native.watch(True, True, lambda: 1 // 0)
    Picture("all of it").load()
    assert (3, None) == Picture().resize()


def test_an_interrupt_that_comes_meanwhile_is_the_jobs(native: Any) -> None:
    """Ctrl-C while ioprof wakes up, or asks an image for something, ends the job as it would have."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    class Slow(Picture):
        format = property(interrupted)  # type: ignore[assignment]

    native.watch(True, True, interrupted)
    with pytest.raises(KeyboardInterrupt):
        and_then(Picture().resize)
    native.watch(True, False, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        and_then(Slow("all of it").load)


def test_nothing_is_left_behind(tmp_path: Path, native: Any) -> None:
    """Calls keep no references, and an observer that nobody holds goes, a cycle through its function included."""
    picture, result = Picture(), object()
    with recorded(tmp_path, native=True):
        before = sys.getrefcount(picture), sys.getrefcount(result), sys.getrefcount(None)
        for _ in range(1000):
            picture.tile = ["all of it"]
            picture.load(lambda: picture.resize(then=lambda: result))
        after = sys.getrefcount(picture), sys.getrefcount(result), sys.getrefcount(None)
    assert before[:2] == after[:2]
    assert abs(before[2] - after[2]) < 100

    def function() -> None:
        pass

    function.observer = native.transforming(function)  # type: ignore[attr-defined]
    gone = weakref.ref(function)
    del function
    gc.collect()
    assert gone() is None


def test_any_callable_can_be_observed(native: Any) -> None:
    """One of C's too; it is bound as a function is."""

    class Words:
        longest = native.transforming(max)

    assert 3 == native.transforming(max)(1, 3, 2)
    assert Words().longest.__self__.__class__ is Words
    assert "max" == Words.longest.__name__
    with pytest.raises(TypeError):
        type(Words.__dict__["longest"])()
