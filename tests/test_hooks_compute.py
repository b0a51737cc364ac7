"""When a loop on the CPU computes: what its modules say themselves is the truth."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hooked import finish, job_has, recorded, run, start
from repository import PROGRAMS

from ioprof.analysis.charge.blame import charges
from ioprof.analysis.charge.compilations import compiled_in
from ioprof.analysis.intervals import overlaps, union
from ioprof.analysis.selection import intervals
from ioprof.format.run_record import PartCode
from ioprof.format.schema import COMPILATION
from ioprof.format.trace import Trace
from ioprof.instrument.hooks.pytorch.compute import device_type

pytestmark = pytest.mark.job

PROGRAM = PROGRAMS / "hooked_modules.py"
STEPS = 5
MILLISECOND = 1_000_000


def of_name(trace: Trace, name: str) -> pl.DataFrame:
    return trace.spans.filter(pl.col("name").cast(str) == name)


def took_ns(trace: Trace, *names: str) -> int:
    """How long the program says that it was in those places, or the hooks that it computed that; an
    instant counts once."""
    spans = union(intervals(trace.spans.filter(pl.col("name").cast(str).is_in(names))))
    return int((spans[:, 1] - spans[:, 0]).sum())


def common_ns(trace: Trace, kind: str, *names: str) -> int:
    """For how long spans of a kind and those places overlap."""
    both = overlaps(
        union(intervals(trace.spans.filter(pl.col("kind") == kind))),
        union(intervals(trace.spans.filter(pl.col("name").cast(str).is_in(names)))),
    )
    return int((both[:, 1] - both[:, 0]).sum())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A loop without a DataLoader: a transform, the model, a loss that is a module, a metric,
    backward and optimizer."""
    spool = tmp_path_factory.mktemp("trained") / "spool"
    run([PROGRAM, "train"], spool)
    return recorded(spool)


@pytest.mark.job(every=4)
def test_the_forward_pass_is_the_modules(trained: Trace) -> None:
    """All of the time in the model and the loss is compute."""
    inside = "in the model", "in the loss"
    assert (
        STEPS * 20 * MILLISECOND
        <= took_ns(trained, *inside)
        == common_ns(trained, "compute", *inside)
    )


@pytest.mark.job(every=4)
def test_what_the_loop_does_itself_is_not_computed(trained: Trace) -> None:
    """Neither the transform before the model, though it is a module, nor the metric after the
    loss."""
    assert 0 == common_ns(trained, "compute", "prepare", "metric")
    assert STEPS * 20 * MILLISECOND <= took_ns(trained, "prepare", "metric")


def test_computation_has_its_step(trained: Trace) -> None:
    """Every step has the three parts; all but those of the first step lie in it."""
    computed = trained.spans.filter(pl.col("kind") == "compute").with_columns(
        pl.col("name").cast(str)
    )
    for name in ("forward", "backward", "optimizer"):
        assert [*range(STEPS)] == computed.filter(pl.col("name") == name)[
            "step"
        ].unique().sort().to_list()
    steps = trained.spans.filter(pl.col("kind") == "step").select(
        "step", begin="start_ns", end="end_ns"
    )
    later = computed.filter(pl.col("step") > 0).join(steps, on="step")
    assert later.select(
        ((pl.col("start_ns") >= pl.col("begin")) & (pl.col("end_ns") <= pl.col("end"))).all()
    ).item()


@pytest.mark.job(every=4)
@pytest.mark.parametrize("how", ["watched", "closure"])
def test_what_the_loop_does_with_gradients_itself_is_not_computed(how: str, tmp_path: Path) -> None:
    """Neither after the backward pass nor in a closure of the optimizer's step; the model, the loss
    and the step are computed."""
    run([PROGRAM, how], tmp_path / "spool")
    trace = recorded(tmp_path / "spool")
    assert STEPS * 10 * MILLISECOND <= took_ns(trace, "watch")
    assert 0 == common_ns(trace, "compute", "watch")
    assert STEPS * 20 * MILLISECOND <= took_ns(trace, "in the model", "in the loss")
    assert took_ns(trace, "in the model", "in the loss") == common_ns(
        trace, "compute", "in the model", "in the loss"
    )
    computed = (
        trace.spans.filter(pl.col("kind") == "compute")
        .with_columns(pl.col("name").cast(str))
        .sort("start_ns")
    )
    for name in ("forward", "backward", "optimizer"):
        assert [*range(STEPS)] == computed.filter(pl.col("name") == name)[
            "step"
        ].unique().sort().to_list()
    assert (computed["start_ns"][1:] >= computed["end_ns"][:-1]).all()


@pytest.mark.job(every=4)
def test_gradients_that_are_asked_for_are_computed(tmp_path: Path) -> None:
    """As for a penalty on them; what the loop does itself before is not."""
    run([PROGRAM, "penalty"], tmp_path / "spool")
    trace = recorded(tmp_path / "spool")
    inside = "in the model", "in the gradients"
    assert (
        STEPS * 20 * MILLISECOND <= took_ns(trace, *inside) == common_ns(trace, "compute", *inside)
    )
    assert 0 == common_ns(trace, "compute", "prepare")


@pytest.mark.job(every=4)
def test_clipping_is_computed(tmp_path: Path) -> None:
    """Once it was seen that torch computes it."""
    run([PROGRAM, "clipped"], tmp_path / "spool")
    trace = recorded(tmp_path / "spool")
    # the first loads code
    later = pl.col("start_ns") >= of_name(trace, "clip")["start_ns"].median()
    trace = replace(trace, spans=trace.spans.filter(later))
    assert common_ns(trace, "compute", "clip") >= 0.5 * took_ns(trace, "clip") > 0
    computed = trace.spans.filter(pl.col("kind") == "compute")["name"].cast(str)
    assert "gradients" in set(computed)  # and not the optimizer's


@pytest.mark.job(every=4)
def test_inference_is_computed(tmp_path: Path) -> None:
    """A model that is only called computes; the transform before it does not."""
    run([PROGRAM, "inference"], tmp_path / "spool")
    trace = recorded(tmp_path / "spool")
    computed = trace.spans.filter(pl.col("kind") == "compute")
    assert {"forward"} == set(computed["name"].cast(str))
    assert took_ns(trace, "in the model") == common_ns(trace, "compute", "in the model")
    assert STEPS == len(computed)


@pytest.mark.job(every=4)
def test_modules_without_parameters_compute_nothing(tmp_path: Path) -> None:
    """Transforms of data."""
    run([PROGRAM, "transforms"], tmp_path / "spool")
    assert 0 == len(recorded(tmp_path / "spool").spans.filter(pl.col("kind") == "compute"))


@pytest.mark.job(every=4)
def test_nothing_notices_how_modules_are_called(tmp_path: Path) -> None:
    """The compiler, TorchScript, FX, export, pickle, inspect, hooks and tracebacks find what they
    find without the hooks."""
    with start(["-W", "ignore", PROGRAM, "ways"], None) as beside:
        hooked = run(["-W", "ignore", PROGRAM, "ways"], tmp_path / "spool")
        assert finish(beside) == hooked


LATE = """
import torch, torch._dynamo, ioprof
model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), torch.ones(2, 4)
def step(x):
    return model(x) * 2
before = torch._dynamo.explain(step)(x).graph_break_count
call = torch.nn.Module.__call__
with ioprof.profile("run"):
    assert torch.nn.Module.__call__ is not call
    torch._dynamo.reset()
    print(before == torch._dynamo.explain(step)(x).graph_break_count)
    print(torch.equal(torch.compile(step, fullgraph=True, backend="eager")(x), step(x)))
print(torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl is call)
"""


@pytest.mark.job(every=4)
def test_a_late_recording_and_its_end(tmp_path: Path) -> None:
    """The compiler was loaded before the hooks: it reads through the observer; afterwards the class
    is as it was."""
    assert ["True"] * 3 == run(
        ["-W", "ignore", "-c", f"import os; os.chdir({str(tmp_path)!r})\n{LATE}"], None
    ).splitlines()[-3:]


@pytest.mark.job(every=4)
def test_what_the_compiler_takes_is_no_computation(tmp_path: Path) -> None:
    """It has spans of its own, in the steps in which it works, and is charged to the loop, with its
    name."""
    if not job_has("torch._dynamo.callback"):
        pytest.skip("this torch does not say when it compiles: torch 2.3 and newer do")
    said = json.loads(run(["-W", "ignore", PROGRAMS / "train_compiled.py", 9], tmp_path / "spool"))
    trace = recorded(tmp_path / "spool")
    spans = trace.spans.filter(pl.col("name").cast(str) == COMPILATION)
    took_s = int((spans["end_ns"] - spans["start_ns"]).sum()) / 1e9
    assert 0.5 * said["compiling_s"] < took_s < said["compiling_s"] + said["others_s"]
    assert (0, 3, 6) == compiled_in(trace)
    found = charges(trace)
    assert found.details.named_ns("host", (PartCode.COMPILATION,)) >= 0.99e9 * took_s
    assert (
        int(found.steps["compute_ns"].sum()) / 1e9
        < said["compiling_s"] + said["others_s"] - 0.9 * took_s
    )


def test_the_device_of_a_tensor_is_what_torch_says() -> None:
    """Also of tensors that only say to be on a device, and of what is no tensor."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    tensor = torch.ones(1)
    tensors = [tensor, torch.nn.Parameter(tensor), torch.ones(1, device="meta")]
    with FakeTensorMode():
        tensors += [torch.ones(1, device="cpu"), torch.ones(1, device="cuda")]
    assert [device_type(each) for each in tensors] == [each.device.type for each in tensors]
    assert [device_type(each) for each in (None, 1, [tensor])] == [None, None, None]
