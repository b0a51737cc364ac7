"""`ioprof prove` of recorded scripts: one loader is changed, in the run that asks for it, and its
rules hold; all others stay."""

import json
import os
import pickle
import sys
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hooked import job_has, recorded, run
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import ioprof
from preload import needs_library
from repository import PROGRAMS, ROOT
from strategies import examples
from torch.utils.data import DataLoader

from ioprof.analysis.answer.provable import can_be_proved, changes_text, training_loader
from ioprof.analysis.charge.steps import steady_steps_per_s
from ioprof.errors import CommandError
from ioprof.format.run_record import Finding, JobChange, LoaderRecord, RunRecord
from ioprof.format.trace import Trace
from ioprof.instrument.hooks.loader_numbers import LoaderNumbers, made
from ioprof.instrument.loader_change import ARGUMENTS, LoaderChange, change_call, change_own_call
from ioprof.jobs.proving import differences
from ioprof.jobs.recorded_script import RecordedScript
from ioprof.model.prediction import Range
from ioprof.model.proof import Proof
from ioprof.recording.command import record_command
from ioprof.report.run import Run
from ioprof.report.texts.prediction import proof_hint, proof_lines
from ioprof.reporter import SILENT

PROGRAM: Final = PROGRAMS / "train_by.py"
FILES: Final = ROOT / "tests" / "data" / "demo" / "files"

# ---------------------------------------------------------------------------------------- arguments

_WORKERS = st.integers(0, 2)


@st.composite
def accepted(draw: st.DrawFn) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that DataLoader accepts, the number of workers by position or by name."""
    workers, options = draw(_WORKERS), {"pin_memory": draw(st.booleans())}
    if workers:
        options |= {
            "prefetch_factor": draw(st.none() | st.integers(1, 4)),
            "persistent_workers": draw(st.booleans()),
        }
        options |= {
            "timeout": draw(st.sampled_from([0, 5])),
            "multiprocessing_context": draw(st.sampled_from([None, "fork"])),
        }
    samples = list(range(8))
    if draw(st.booleans()):
        return (samples, 4, False, None, None, workers), options
    return (samples,), {
        "batch_size": 4,
        **({"num_workers": workers} if workers or draw(st.booleans()) else {}),
        **options,
    }


_NEW = st.fixed_dictionaries(
    {},
    optional={
        "num_workers": _WORKERS,
        "prefetch_factor": st.integers(1, 8),
        "persistent_workers": st.just(value=True),
        "pin_memory": st.just(value=True),
    },
)


def _made(
    args: tuple[Any, ...], options: dict[str, Any], new: dict[str, Any]
) -> tuple[DataLoader, dict[str, Any]]:
    loader = DataLoader.__new__(DataLoader)
    call = change_own_call(DataLoader.__init__, (loader, *args), options, new, ())
    DataLoader.__init__(*call.args, **call.kwargs)
    return loader, call.replaced


@settings(max_examples=examples(200), deadline=None)
@given(accepted(), _NEW)
def test_a_changed_loader_is_one_that_torch_accepts(
    call: tuple[tuple[Any, ...], dict[str, Any]], new: dict[str, Any]
) -> None:
    """It has the new values, and all others as they were; what needs workers is gone where it has
    none, and never an error."""
    args, options = call
    before, (after, replaced) = DataLoader(*args, **options), _made(args, options, new)
    assert after.num_workers == new.get("num_workers", before.num_workers)
    assert after.pin_memory == new.get("pin_memory", before.pin_memory)
    if not after.num_workers:
        assert (None, False, 0, None) == (
            after.prefetch_factor,
            after.persistent_workers,
            after.timeout,
            after.multiprocessing_context,
        )
        after.pin_memory = False  # torch warns where there is no device
        assert 2 == len(list(after))
    else:
        kept = before.prefetch_factor if before.num_workers else 2
        assert after.prefetch_factor == new.get("prefetch_factor", kept)
        assert after.persistent_workers == new.get("persistent_workers", before.persistent_workers)
        assert (after.timeout, after.multiprocessing_context) == (
            before.timeout,
            before.multiprocessing_context,
        )
    assert (after.dataset, after.batch_size) == (before.dataset, before.batch_size)
    assert all(
        value == options.get(name, args[5] if name == "num_workers" and len(args) > 5 else value)
        for name, value in replaced.items()
    )


def test_no_change_leaves_the_call_as_it_is() -> None:
    """Also one that the constructor refuses: the error is its own."""
    args, options = (object(), [1, 2], 3), {"num_workers": 1, "unknown": 2}
    call = change_own_call(DataLoader.__init__, args, options, {"num_workers": 2}, ())
    assert (args, options, {}) == (call.args, call.kwargs, call.replaced)


def test_a_class_that_takes_an_argument_itself_gets_it() -> None:
    """Under its name, or among further keywords if it was given there; what it does not take is
    left to DataLoader."""

    def own(self: object, data: object, num_workers: int = 0) -> None: ...

    def handing(self: object, *args: object, **options: object) -> None: ...

    new = {"num_workers": 4, "pin_memory": True}
    call = change_call(own, (1, 2), {}, new)
    assert ((1, 2, 4), {}, {"num_workers": 0}) == (call.args, call.kwargs, call.replaced)
    call = change_call(handing, (1, 2), {"num_workers": 1}, new)
    assert ((1, 2), {"num_workers": 4}, {"num_workers": 1}) == (
        call.args,
        call.kwargs,
        call.replaced,
    )
    assert {} == change_call(handing, (1, 2), {}, new).replaced


@given(
    st.dictionaries(st.sampled_from(ARGUMENTS), st.integers(0, 9)),
    st.dictionaries(st.text(), st.none() | st.frozensets(st.integers(0, 9))),
)
def test_the_variable_holds_the_change(
    arguments: dict[str, Any], loaders: dict[str, frozenset[int] | None]
) -> None:
    """What is written is what is read."""
    change = LoaderChange(arguments, loaders)
    assert change == LoaderChange.parse(change.to_text())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "{}",
        '{"arguments": {"batch_size": 2}, "loaders": {}}',
        '{"arguments": [], "loaders": 3}',
    ],
)
def test_another_text_is_refused(text: str) -> None:
    """Nothing is changed by what is not understood."""
    with pytest.raises(ValueError, match=r"."):
        LoaderChange.parse(text)


# ------------------------------------------------------------------------------------- which loader


class Named(DataLoader):
    """A subclass whose constructors are left out of the path."""

    def __init__(self, *args: Any, numbers: LoaderNumbers) -> None:
        super().__init__(*args)
        numbers.identify(self, sys._getframe())


def test_what_a_program_no_longer_uses_is_gone_though_it_made_a_loader() -> None:
    """Its variables are looked at, and are not kept for that; a program that has them itself keeps
    them."""

    def drops(numbers: LoaderNumbers) -> bool:
        used = LoaderNumbers()
        Named([1], numbers=numbers)
        is_used = weakref.ref(used)
        del used
        return is_used() is None

    def keeps(numbers: LoaderNumbers) -> dict[str, Any]:
        mine = locals()
        Named([1], numbers=numbers)
        return mine

    numbers = LoaderNumbers()
    assert drops(numbers)
    assert numbers is keeps(numbers)["numbers"]


def test_loaders_of_one_line_are_numbered() -> None:
    """Each line is a path of its own, and so is each way to it; the constructor is none of the
    path."""
    numbers = LoaderNumbers()

    def helper() -> DataLoader:
        return Named([1], numbers=numbers)

    found = [made(each) for each in [*(helper() for _ in range(2)), helper()]]
    assert [0, 1, 0] == [each.number for each in found if each]
    assert 2 == len({each.path for each in found if each})
    assert {f"test_prove.py:{helper.__code__.co_firstlineno + 1}"} == {
        each.place for each in found if each
    }


def test_what_is_kept_with_a_loader_needs_no_ioprof() -> None:
    """A loader may be sent to a process that does not have it."""
    loader = DataLoader([1])
    LoaderNumbers().identify(loader, sys._getframe())
    assert b"ioprof." not in pickle.dumps(loader)


def _loader(path: str, number: int | None, *purposes: str, **more: Any) -> LoaderRecord:
    usual = {
        "made_at": f"{path}:1",
        "class_name": "DataLoader",
        "dataset": "Images",
        "batch_size": 8,
        "workers": 1,
        "prefetch": 2,
    }
    return LoaderRecord(
        path=path,
        number=number,
        purposes=purposes,
        **{**usual, "persistent_workers": False, "pin_memory": False, **more},
    )


def _run(*loaders: LoaderRecord, **more: Any) -> RunRecord:
    config = {"loader": "torch DataLoader", "workers": 1, "ranks": 1}
    return RunRecord.of(
        {"schema": "ioprof.run/2", "command": "true", "config": config, **more}
    ).replace(loaders=loaders)


@pytest.mark.parametrize(
    ("loaders", "numbers"),
    [
        ([_loader("a", 0, "train", "step"), _loader("b", 0, "validate")], {"a": None}),
        ([_loader("a", 0, "validate"), _loader("a", 1, "train", "step")], {"a": frozenset({1})}),
        ([_loader("a", 0, "train", "step"), _loader("a", 1, "train", "step"), _loader("a", None, "train", "step")], {"a": None}),  # noqa: E501
        ([_loader("a", 0, "train", "step"), _loader("b", 0, "train", "step", made_at="a:1")], {"a": None, "b": None}),  # noqa: E501
        ([_loader("a", 0, "train", "step", "validate"), _loader("b", 0, "no gradients")], {"a": None}),  # noqa: E501
        ([_loader("a", 0, "train", "step"), _loader("b", 0, "train", "no step")], {"a": None}),
        ([_loader("a", 0, "no gradients")], {"a": None}),
        ([_loader("a", 0, "train")], {"a": None}),
    ],
    ids=["two lines", "one line", "each epoch", "two ways", "also validates", "gradients", "inference", "no step"],  # noqa: E501
)  # fmt: skip
def test_the_loader_to_train_from_is_found(
    loaders: list[LoaderRecord], numbers: dict[str, Any]
) -> None:
    """By what its batches were used for."""
    assert numbers == training_loader(_run(*loaders)).numbers


@pytest.mark.parametrize(
    ("loaders", "why"),
    [
        ([], "not recorded"),
        ([_loader("a", 0, "validate")], "no batch"),
        ([_loader("a", None, "train", "step").replace(path=None)], "before the recording"),
        ([_loader("a", 0, "train", "step"), _loader("b", 0, "train", "step")], "several loaders"),
        ([_loader("a", 0, "train", "step"), _loader("b", 0, "train")], "not certain"),
        ([_loader("a", 0, "train", "step"), _loader("a", None, "validate")], "again and again"),
    ],
)
def test_a_loader_that_cannot_be_told_apart_is_not_changed(
    loaders: list[LoaderRecord], why: str
) -> None:
    """One line says why, before anything is run; and no report says that it can be proved."""
    asked = _run(*loaders)
    with pytest.raises(CommandError, match=why):
        RecordedScript.of(asked, JobChange(workers=2), ["true"], os.environ)
    assert not can_be_proved(asked, Finding("x", change=JobChange(workers=2)))


def test_what_can_be_proved_is_told() -> None:
    """Arguments of the loader that it does not have yet, and none that need workers where there are
    none."""
    asked, none = (
        _run(_loader("a", 0, "train", "step")),
        _run(_loader("a", 0, "train", "step", workers=0, prefetch=None)),
    )
    changes = [
        JobChange(workers=2),
        JobChange(workers=1),
        JobChange(prefetch=4),
        JobChange(persistent_workers=True),
        JobChange(pin_memory=True),
        JobChange(batch=16),
        JobChange(speeds={"compute": 2.0}),
        None,
    ]
    assert [True, False, True, True, True, False, False, False] == [
        can_be_proved(asked, Finding("x", change=each)) for each in changes
    ]
    assert [True, True, False, False] == [
        can_be_proved(none, Finding("x", change=each)) for each in changes[:4]
    ]
    advice = [Finding("x"), Finding("y", can_be_proved=True), Finding("z", can_be_proved=True)]
    assert "ioprof prove RUN --advice 2 (or 3)" in (proof_hint(advice) or "")
    assert proof_hint(advice[:1]) is None


def test_a_command_that_cannot_be_run_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not known, or not here, or of another folder; what is given counts instead."""
    change, loader = JobChange(workers=2), _loader("a", 0, "train", "step")
    monkeypatch.chdir(tmp_path)
    for run_record, why in (
        (_run(loader, command=None), "by which command"),
        (_run(loader, command="a 'b"), "by which command"),
        (_run(loader, command="no-such-program x"), "no such program"),
        (_run(loader, directory="/elsewhere"), "type cd /elsewhere first"),
    ):
        with pytest.raises(CommandError, match=why):
            RecordedScript.of(run_record, change, None, os.environ)
        assert ("true", "x") == RecordedScript.of(
            run_record, change, ("true", "x"), os.environ
        ).command
    assert ("true",) == RecordedScript.of(
        _run(loader, directory=str(tmp_path)), change, None, os.environ
    ).command
    with pytest.raises(CommandError, match="several recordings"):
        RecordedScript.of(
            _run(loader),
            change,
            None,
            {**os.environ, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
        )


def test_a_run_with_the_change_is_checked(tmp_path: Path) -> None:
    """That the loader is there and has the new value, and that no other one was touched."""
    training, other = _loader("a", 0, "train", "step"), _loader("b", 0, "validate")
    script = RecordedScript.of(_run(training, other), JobChange(workers=2), ("true",), os.environ)
    new = training.replace(workers=2, replaced={"num_workers": 1})
    script.check(_run(training, other), tmp_path, is_changed=False)
    script.check(_run(new, other), tmp_path, is_changed=True)
    for found, is_changed, why in (
        (_run(_loader("c", 0, "train", "step"), other), False, "used no loader like"),
        (_run(training, other), True, "its class sets that itself"),
        (_run(training.replace(workers=3), other), False, "is not the recorded one"),
        (_run(new, other.replace(workers=2, replaced={"num_workers": 1})), True, "was changed too"),
        (
            _run(new, _loader("a", 1, "validate", workers=2, replaced={"num_workers": 1})),
            True,
            "was changed too",
        ),
    ):
        with pytest.raises(CommandError, match=why):
            script.check(found, tmp_path, is_changed=is_changed)


def test_a_bound_agrees_if_it_is_kept() -> None:
    """Of page-locked memory only the most is predicted: less is no error, more is one."""

    def proof(measured: float) -> Proof:
        return Proof(
            "x", 1.5, Range(1.2, 1.6), None, measured, None, (measured,), (), is_bound=True
        )

    assert [(None, True), (None, True), (None, False)] == [
        (each.error, each.agrees) for each in map(proof, (1.0, 1.5, 2.0))
    ]
    text = " ".join(proof_lines(proof(1.0)))
    assert "at most 1.50 ×" in text
    assert "no more than predicted" in text


def test_what_else_differs_in_a_pair_is_told() -> None:
    """Another share of bytes from storage, where that took time, and another number of steps;
    nothing of a run and itself."""
    before = Run.load(FILES)
    assert [] == list(differences(before, before))
    steps, storage = before.summary.steps, before.summary.storage
    causes = tuple(
        each.replace(share=0.3) if each.cause == "storage" else each for each in steps.causes
    )
    slow = before.summary.replace(
        steps=steps.replace(causes=causes),
        storage=storage.replace(bytes_from_storage=storage.bytes),
    )
    after = before.summary.replace(
        steps=steps.replace(count=2 * steps.count), storage=storage.replace(bytes_from_storage=0)
    )
    found = list(differences(replace(before, summary=slow), replace(before, summary=after)))
    assert ["page cache" in found[0], f"{2 * steps.count} with it" in found[1]] == [True, True]


def test_steady_steps_leave_out_the_first_and_the_last() -> None:
    """Where samples are not known, a rate is that of steps; few steps have none."""
    bounds = [0, 50, 70, *range(80, 180, 10), 300]
    rows = [
        (0, step, start * 10**9, end * 10**9) for step, (start, end) in enumerate(pairwise(bounds))
    ]
    table = pl.DataFrame(rows, ["rank", "step", "start_ns", "end_ns"], orient="row")
    assert 0.1 == pytest.approx(steady_steps_per_s(table))
    assert steady_steps_per_s(table[:3]) is None
    assert steady_steps_per_s(table[:0]) is None


@pytest.mark.job
@needs_library
def test_an_interrupt_ends_a_series_of_runs(tmp_path: Path) -> None:
    """Also where the command ignores it and ends well: the next run is not begun."""
    ignores = ("sh", "-c", "trap '' INT; echo begun; kill -INT $PPID; sleep 0.3")
    with pytest.raises(KeyboardInterrupt):
        record_command(ignores, tmp_path / "run", os.environ, in_series=True)
    assert "complete" == Trace.load(tmp_path / "run").run.status
    assert "begun" in (tmp_path / "run" / "job.log").read_text()


# ------------------------------------------------------------------------------------- real loaders

_LIBRARIES = {
    "stateful": "torchdata",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "trainer": "transformers",
}


@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    "how", ["positional", "helper", "each_epoch", "own", "careless", *_LIBRARIES]
)
def test_one_loader_is_changed_and_the_others_stay(how: str, tmp_path: Path) -> None:
    """Whoever makes it: the one to train from gets two workers, and the one to validate, of the
    same dataset, keeps its own."""
    if how in _LIBRARIES and not job_has(_LIBRARIES[how]):
        pytest.skip(f"no {_LIBRARIES[how]}")
    words = [PROGRAM, how, 1, tmp_path / "out"]
    run(words, tmp_path / "first")
    before = recorded(tmp_path / "first").run
    change = LoaderChange(
        {"num_workers": 2, "persistent_workers": True}, training_loader(before).numbers
    )
    run(words, tmp_path / "second", IOPROF_CHANGE=change.to_text())
    after = recorded(tmp_path / "second").run
    assert all({} == each.replaced for each in before.loaders)
    kept = [each for each in before.loaders if not change.is_of(each.path, each.number)]
    assert kept
    assert kept == [each for each in after.loaders if not change.is_of(each.path, each.number)]
    changed = [each for each in after.loaders if each not in kept]
    assert len(changed) == len(before.loaders) - len(kept) > 0
    assert all("step" in each.purposes for each in changed)
    assert {(2, True, (("num_workers", 1), ("persistent_workers", False)))} == {
        (each.workers, each.persistent_workers, tuple(sorted(each.replaced.items())))
        for each in changed
    }
    assert "num_workers=2 instead of 1" in (changes_text(after.loaders) or "")


@pytest.mark.job(every=4)
def test_every_rank_makes_the_change(tmp_path: Path) -> None:
    """Under torchrun too."""
    words = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        2,
        "--master-port",
        0,
        PROGRAM,
        "plain",
    ]
    run(words, tmp_path / "first")
    change = LoaderChange(
        {"num_workers": 2}, training_loader(recorded(tmp_path / "first").run).numbers
    )
    run(words, tmp_path / "second", IOPROF_CHANGE=change.to_text())
    workers = {rank: _workers(recorded(tmp_path / "second"), rank) for rank in (0, 1)}
    assert {0: {0, 1}, 1: {0, 1}} == workers


def _workers(trace: Trace, rank: int) -> set[int]:
    return {
        each.worker
        for each in trace.run.processes
        if each.rank == rank and each.role == "worker" and each.worker is not None
    }


@pytest.mark.job(every=4)
@pytest.mark.alone  # beside other tests no core is idle, and no workers are advised
@needs_library
def test_prove_records_a_script_again_without_and_with_the_change(tmp_path: Path) -> None:
    """The change takes effect in the runs with it, validation stays, and the result has what was
    predicted and measured."""
    for folder in ("first", "second", "third"):  # other tests may leave no core for a worker
        first = ioprof(
            "record",
            "--quiet",
            "--out",
            folder,
            "--",
            sys.executable,
            PROGRAM,
            "plain",
            cwd=tmp_path,
        )
        assert 0 == first.code, first.err
        told = json.loads(ioprof("report", folder, "--json", cwd=tmp_path).out)["verdict"][
            "findings"
        ]
        number = next(
            (place for place, each in enumerate(told, 1) if "workers" in (each["change"] or {})),
            None,
        )
        if number is not None:
            break
    else:
        pytest.skip("this machine has no core for a worker, so none was advised")
    assert told[number - 1]["can_be_proved"]
    printed = ioprof("prove", folder, "--advice", number, "--pairs", 1, "--json", cwd=tmp_path)
    assert 0 == printed.code, printed.err
    found = json.loads(printed.out)  # what the script prints is elsewhere
    runs = [Trace.load(Path(each)).run for each in found["runs"]]
    wanted = told[number - 1]["change"]["workers"]
    loaders = [{tuple(each.purposes): each.workers for each in run.loaders} for run in runs]
    assert [
        {("train", "step"): 1, ("validate",): 1},
        {("train", "step"): wanted, ("validate",): 1},
    ] == loaders
    assert f"num_workers={wanted} instead of 1" in found["changed"]
    assert [sys.executable, str(PROGRAM), "plain"] == found["command"]
    assert found["measured"] == pytest.approx(found["pairs"][0])
    # its workers sleep, so that two of them make batches nearly twice as fast on an idle machine
    assert found["measured"] > 0.7
    assert "changed job" in ioprof("report", found["runs"][1], "--full", cwd=tmp_path).out
    assert "changed job" not in ioprof("report", found["runs"][0], "--full", cwd=tmp_path).out
    again = ioprof("prove", folder, "--advice", number, "--pairs", 1, cwd=tmp_path)
    assert (2, True) == (again.code, "replace it with --force" in again.err)


@pytest.mark.job(every=4)
@needs_library
def test_a_script_that_fails_with_the_change_proves_nothing(tmp_path: Path) -> None:
    """The error says in which run, and the script's own last line; the run folder says that the run
    failed."""
    before = _recorded("fails", 1, tmp_path)
    script = RecordedScript.of(before, JobChange(workers=2), None, os.environ)
    with pytest.raises(
        CommandError, match=r"with the change.*several workers are too many"
    ) as caught:
        _repeat(script, tmp_path / "after")
    assert 1 == caught.value.exit_code
    assert "failed" == Trace.load(tmp_path / "after").run.status


@pytest.mark.job(every=4)
@needs_library
def test_a_loader_without_workers_gets_some(tmp_path: Path) -> None:
    """0 -> 2, and the other way; a class that never has more than one is named."""
    before = _recorded("plain", 0, tmp_path)
    script = RecordedScript.of(before, JobChange(workers=2), None, os.environ)
    after = _repeat(script, tmp_path / "two")
    assert (2, 2) == ((loader := training_loader(after).record).workers, loader.prefetch)
    assert {0, 1} == _workers(Trace.load(tmp_path / "two"), 0)
    fixed = RecordedScript.of(
        _recorded("fixed", 1, tmp_path), JobChange(workers=2), None, os.environ
    )
    with pytest.raises(
        CommandError,
        match=r"the Fixed made at .* has num_workers=1, not 2: its class sets that itself",
    ):
        _repeat(fixed, tmp_path / "fixed-after")


def _recorded(how: str, workers: int, tmp_path: Path) -> RunRecord:
    done = ioprof(
        "record", "--quiet", "--out", how, "--", sys.executable, PROGRAM, how, workers, cwd=tmp_path
    )
    assert 0 == done.code, done.err
    return Trace.load(tmp_path / how).run.replace(directory=None)


def _repeat(script: RecordedScript, out: Path) -> RunRecord:
    return script.run(
        out, is_changed=True, force=False, environment=os.environ, reporter=SILENT
    ).trace.run
