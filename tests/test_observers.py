"""What stands in the place of a library's function: it looks on, and cannot be told from what it
observes.

All of it holds for the extension's observers and for those in Python, but where only the
extension's go further.
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
from pictures import Picture, observing, spans, spin

from ioprof import _native as native_module
from ioprof.clock import monotonic_ns
from ioprof.instrument import recorder
from ioprof.instrument.hooks import python_observers
from ioprof.instrument.hooks.patches import Patches

KINDS: Final = {"native": native_module, "python": python_observers}


def and_then(call: Callable[[], Any]) -> None:
    """Make a call, and go on for a while."""
    call()
    spin()


@pytest.fixture(params=KINDS)
def observers(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Observers that record, and `Picture` observed by them."""
    module = KINDS[request.param]
    yield from observing(module)


@pytest.fixture
def native() -> Iterator[Any]:
    """The same, of the extension only."""
    yield from observing(native_module)


@pytest.mark.parametrize("writer", WRITERS)
def test_transforms_and_decoding_are_told_apart(
    tmp_path: Path, observers: Any, writer: str
) -> None:
    """Decoding within a transform cuts it in two; what has nothing to decode is no span; a batch is
    that of its thread."""
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
    assert [("transform", None, None), *cut, decode, decode, ("decode", "imread", None)] == spans(
        tmp_path
    )


def test_a_transform_has_a_name_and_excludes_what_interrupts_it(
    tmp_path: Path, observers: Any
) -> None:
    """Both parts of an interrupted transform have the name; an interruption outside of any is
    nothing."""

    def wait() -> None:
        start_ns = monotonic_ns()
        spin()
        observers.interrupted(start_ns, monotonic_ns())

    transform = observers.transforming(lambda: [work() for work in (spin, wait, spin)], "mine")
    with recorded(tmp_path):
        transform()
        wait()
    assert [("transform", "mine", None)] * 2 == spans(tmp_path)


def original(function: Any) -> Any:
    """What an observer observes."""
    return function._ioprof_observes


def test_only_the_outermost_transform_counts(tmp_path: Path, observers: Any) -> None:
    """A method that calls another one is one transform, whether it ends well or not."""
    with recorded(tmp_path):
        assert (3, (4, None)) == Picture().resize(then=lambda: Picture().resize(4))
        with pytest.raises(ZeroDivisionError):
            Picture().resize(then=lambda: 1 // 0)
        Picture().resize()
    assert [("transform", None, None)] * 3 == spans(tmp_path)


def test_operations_of_a_pipeline_have_the_names_of_their_classes(
    tmp_path: Path, observers: Any
) -> None:
    """One within another is part of it, a decode within one is none; an error ends it. Outside of a
    pipeline only those that may be alone count."""

    class Crop:
        def __call__(self, *works: Any) -> None:
            for work in works:
                work()

    class Blur(Crop):
        def __call__(self, *works: Any) -> None:
            super().__call__(*works)

    Crop.__call__ = observers.operating(Crop.__call__, True)  # type: ignore[method-assign]
    Blur.__call__ = observers.operating(Blur.__call__, False)  # type: ignore[method-assign]
    crop, blur = Crop(), Blur()
    pipeline = observers.transforming(lambda *works: [work() for work in works], "Compose")
    with recorded(tmp_path):
        pipeline(spin, lambda: blur(spin, crop, spin), lambda: crop(spin), spin)
        crop(spin, Picture("all of it").load, spin)
        blur(spin)
        with pytest.raises(ZeroDivisionError):
            pipeline(lambda: crop(lambda: 1 // 0))
        pipeline(spin)
    outer, inner, crops = (
        ("transform", "Compose", None),
        ("transform", "Blur", None),
        ("transform", "Crop", None),
    )
    told = [span for span in spans(tmp_path) if span != outer]
    # blur alone calls the method of crops
    assert [
        inner,
        crops,
        crops,
        ("decode", "ABC", None),
        crops,
        inner,
        crops,
    ] == told
    assert outer == spans(tmp_path)[0] == spans(tmp_path)[-1]


def test_a_formats_own_load_is_one_decode(tmp_path: Path, observers: Any) -> None:
    """It calls the common one; which of the two finds something to decode does not matter, nor
    whether it fails."""
    with recorded(tmp_path):
        late = Picture()
        late.load(Picture("all of it").load)
        Picture("all of it").load(Picture().load)
        Picture().load(Picture().load)
        with pytest.raises(ZeroDivisionError):
            Picture("all of it").load(lambda: 1 // 0)
    assert [("decode", "ABC", None)] * 3 == spans(tmp_path)


@given(
    size=st.integers(),
    tile=st.one_of(st.none(), st.lists(st.integers()), st.floats()),
    is_on=st.booleans(),
)
def test_results_and_exceptions_are_the_originals(size: int, tile: Any, is_on: bool) -> None:
    """Whatever goes in and comes out, recorded or not."""
    for module in KINDS.values():
        for _ in observing(module):
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
    """Neither a name that cannot be had nor a truth that cannot be told raises anything in the job,
    or hides what was raised."""

    class Vague:
        def __bool__(self) -> bool:
            raise OSError("neither")

    with recorded(tmp_path):
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
    for ask in (
        inspect.signature,
        inspect.getsource,
        inspect.isfunction,
        inspect.isroutine,
        inspect.unwrap,
    ):
        assert ask(function) == ask(Picture.resize)
    assert isinstance(Picture.resize, types.FunctionType)
    assert Picture.resize is getattr(Picture().resize, "__func__")  # noqa: B009
    assert Picture.resize is pickle.loads(pickle.dumps(Picture.resize)) is copy.copy(Picture.resize)
    assert (
        Picture.resize
        is weakref.ref(Picture.resize)()
        is vars(Picture)["resize"]
        is copy.deepcopy(Picture.resize)
    )
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
    names = [
        [frame.name for frame in traceback.extract_tb(raised.tb)] for raised in (observed, expected)
    ]
    assert names[0] == names[1]
    for attribute in (
        "__defaults__",
        "__kwdefaults__",
        "__code__",
        "__globals__",
        "__dict__",
        "__closure__",
    ):
        assert getattr(original(Picture.resize), attribute) is getattr(Picture.resize, attribute)
    assert repr(original(Picture.resize)) == repr(Picture.resize)


def test_what_was_begun_before_is_forgotten(tmp_path: Path, observers: Any) -> None:
    """A recording that begins within calls hears nothing of them, and all of the next ones."""
    with recorded(tmp_path):
        Picture("all of it").load(lambda: Picture().resize(then=observers.forget))
        Picture("all of it").load()
    assert [("decode", "ABC", None)] == spans(tmp_path)


@pytest.mark.job
def test_a_child_tells_nothing_of_what_its_parent_was_at(tmp_path: Path, observers: Any) -> None:
    """One that is forked within a call records what it does itself; its parent's call goes on as if
    there were no child."""
    children = []

    def fork() -> None:
        children.append(os.fork())
        if children == [0]:
            observers.forget()  # as the session does in children
            recorder.start(tmp_path)

    parent = os.getpid()
    with recorded(tmp_path):
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
    """Ctrl-C while ioprof wakes up, or asks an image for something, ends the job as it would
    have."""

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
    """Calls keep no references, and an observer that nobody holds goes, a cycle through its
    function included."""
    picture, result = Picture(), object()
    with recorded(tmp_path):
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
    """One of C's too; as an attribute of a class it is bound where the original would be."""

    class Words:
        longest = native.transforming(max)
        shortest = native.transforming(lambda _, *words: min(words))

    assert (
        3 == native.transforming(max)(1, 3, 2) == Words().longest(1, 3, 2) == Words.longest(1, 3, 2)
    )
    assert 1 == Words().shortest(1, 3, 2)
    assert "max" == Words.longest.__name__
    for observer in (Words.longest, Words.shortest):
        with pytest.raises(TypeError):
            object.__getattribute__(observer, "__class__")()


def work_for(duration_ns: int) -> int:
    """Take that long, at least; what it took."""
    start_ns = end_ns = monotonic_ns()
    while end_ns - start_ns < duration_ns:
        end_ns = monotonic_ns()
    return end_ns - start_ns


def decoding_spans(spool: Path) -> pl.DataFrame:
    """Name, start and end of the decodes and transforms, in order."""
    found = trace_of(spool).spans.with_columns(pl.col("name").cast(str), pl.col("kind").cast(str))
    return found.select(
        "kind", "name", "batch", "start_ns", "end_ns", ns=pl.col("end_ns") - pl.col("start_ns")
    ).sort("start_ns")


def test_only_the_outermost_decoder_counts(tmp_path: Path, observers: Any) -> None:
    """One that calls another, Pillow's or a transform is one span, also if it fails; the next one
    is another."""
    inner = observers.decoding(lambda: work_for(20_000), "a.inner")

    def outer_function(*then: Callable[[], Any]) -> None:
        for function in (inner, Picture("all of it").load, Picture().resize, *then):
            function()

    outer = observers.decoding(outer_function, "b.outer")
    with recorded(tmp_path):
        observers.makes(3)
        outer()
        inner()
        with pytest.raises(ZeroDivisionError):
            outer(lambda: 1 // 0)
        observers.makes(-1)
        inner()
    names = ("b.outer", 3), ("a.inner", 3), ("b.outer", 3), ("a.inner", None)
    assert [("decode", *name) for name in names] == spans(tmp_path)


@pytest.mark.parametrize("writer", WRITERS)
def test_short_decodes_are_added_up(tmp_path: Path, observers: Any, writer: str) -> None:
    """Calls that take less than 5 us lose no time: the sum of the spans is that of the calls. There
    is at most one per ms and name, in the batch of its calls; a transform around them is cut, and
    no span overlaps another."""
    short = [observers.decoding(lambda: work_for(500), name) for name in ("a.short", "b.short")]
    long = observers.decoding(lambda: work_for(50_000), "c.long")
    calls = 3000

    def many() -> tuple[int, int]:
        begin_ns, spent_ns = monotonic_ns(), 0
        for number in range(calls):
            spent_ns += short[number % 2]()
        return spent_ns, monotonic_ns() - begin_ns

    with recorded(tmp_path, native=WRITERS[writer]):
        observers.makes(1)
        least_ns, most_ns = many()
        observers.makes(2)
        _, (least_more_ns, most_more_ns) = Picture().resize(then=many)
        long()
        observers.makes(-1)
    spans(tmp_path)  # none lies in another
    found = decoding_spans(tmp_path)
    decodes = found.filter(pl.col("kind") == "decode", pl.col("name") != "c.long")
    for batch, least, most in ((1, least_ns, most_ns), (2, least_more_ns, most_more_ns)):
        own = decodes.filter(pl.col("batch") == batch)
        assert least <= own["ns"].sum() <= most
        assert len(own) <= 2 * (most / 1e6 + 1) + own.filter(pl.col("ns") >= 5000).height
    assert 1 == len(found.filter(pl.col("name") == "c.long"))
    transforms = found.filter(pl.col("kind") == "transform")
    assert len(transforms) > 1
    assert (
        transforms["ns"].sum() + decodes.filter(pl.col("batch") == 2)["ns"].sum()
        <= 1.01 * most_more_ns + 100_000
    )


def test_an_iterator_is_decoded_in_its_next(tmp_path: Path, observers: Any) -> None:
    """What the consumer does between two items is no part of it; the iterator has all that the
    original has."""

    def frames(count: int) -> Iterator[int]:
        for number in range(count):
            work_for(20_000)
            yield number

    observed = observers.decoding_items(frames, "a.frames")
    assert [0, 1] == [*observed(2)]
    spent_ns = 0
    with recorded(tmp_path):
        items = observed(50)
        assert iter(items) is items
        for expected in range(50):
            begin_ns = monotonic_ns()
            assert expected == next(items)
            spent_ns += monotonic_ns() - begin_ns
            work_for(20_000)
        with pytest.raises(StopIteration):
            next(items)
        begun = observed(3)
        assert 0 == next(begun)
        begun.close()
        assert [] == [*begun]
        assert [] == [*observed(0)]
        assert "frames" == begun.__name__
        assert observers.decoding_items(len, "a.len")("abc") == 3
        observers.makes(-1)
    found = decoding_spans(tmp_path)
    of_items = found.filter(pl.col("ns") >= 20_000)
    assert {"a.frames"} == set(of_items["name"])
    assert len(of_items) >= 51  # a short one may have waited for a core
    assert 50 * 20_000 <= of_items.head(50)["ns"].sum() <= spent_ns


def test_a_method_of_a_static_type_is_replaced_and_put_back(native: Any) -> None:
    """Of an extension module's; subclasses and instances that are there get it, and Python's own
    types are left alone."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": [1, 2]})
    if pa.lib.Table.__flags__ & 1 << 9:
        pytest.skip("this pyarrow has no static types")
    patches, before = Patches(), vars(pa.lib._Tabular)["to_pylist"]
    patches.wrap(
        pa.lib._Tabular,
        "to_pylist",
        lambda original: native.decoding(original, "pyarrow._Tabular.to_pylist"),
    )
    patches.wrap(
        pa.lib._Tabular, "__len__", lambda original: native.decoding(original, "not observed")
    )
    patches.wrap(str, "upper", lambda original: native.decoding(original, "not observed"))
    try:
        assert before is table.to_pylist.__func__._ioprof_observes
        assert (
            [{"a": 1}, {"a": 2}]
            == table.to_pylist()
            == pa.table({"a": [1, 2]}).to_pylist()
            == pa.lib.Table.to_pylist(table)
        )
        assert not hasattr(vars(str)["upper"], "_ioprof_observes")
        assert 2 == len(table)
    finally:
        patches.undo()
    assert before is vars(pa.lib._Tabular)["to_pylist"]
    assert [{"a": 1}, {"a": 2}] == table.to_pylist()
    assert not hasattr(table.to_pylist, "_ioprof_observes")


def test_a_decoder_that_starts_the_recording(observers: Any) -> None:
    """A process whose recording has not begun starts it at its first decode."""
    woken = []
    observers.watch(True, True, lambda: woken.append(1))
    assert 4 == observers.decoding(lambda: 4, "a.four")()
    observers.watch(False, False, lambda: None)
    assert 4 == observers.decoding(lambda: 4, "a.four")()
    assert [1] == woken
