"""The public functions of `import ioprof`: documented, typed, and the same as the commands."""

import inspect
import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import jobs
import pytest
from repository import ROOT

import ioprof
from ioprof.cli.convert import imagenet
from ioprof.cli.probe import probe as probe_command
from ioprof.cli.record import record as record_command
from ioprof.converters import ConvertOptions
from ioprof.errors import CommandError, RunError
from ioprof.store.runs import Store

DEMO = [ROOT / "tests" / "data" / "demo" / name for name in ("files", "lmdb")]
FUNCTIONS = ["compare", "convert", "load", "probe", "profile", "record", "run", "whatif"]
FUNCTIONS += ["extrapolate", "simulate", "size"]


class Messages:
    """A reporter that keeps what it is given."""

    def __init__(self):
        self.said = []
        self.counts = {}

    def say(self, text):
        self.said.append(text)

    @contextmanager
    def progress(self, what, total):
        self.counts[what] = 0

        def advance(count, /):
            self.counts[what] += count

        yield advance
        assert total >= self.counts[what]


def defaults(function):
    """What each parameter is if it is not given."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
    }


# ----------------------------------------------------------------------------- how they are offered


@pytest.mark.job
def test_the_names_are_offered_and_loaded_late():
    """`dir` and `__all__` have them all, and asking for one loads it; a name that is not there is
    an AttributeError."""
    assert set() == set(ioprof.__all__) - set(dir(ioprof))
    code = (
        "import sys, ioprof; early = set(sys.modules); ioprof.run; print('ioprof.api' in early,"
        " 'ioprof.api' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "False True" == ended.stdout.strip()
    with pytest.raises(AttributeError, match="no attribute 'rewind'"):
        _ = ioprof.rewind


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_is_documented_and_typed(name):
    """A docstring with an example and the errors; a type for every parameter and for the result."""
    function = getattr(ioprof, name)
    assert f"ioprof.{name}(" in function.__doc__
    assert "Raises" in function.__doc__
    signature = inspect.signature(function)
    assert inspect.Signature.empty not in {
        signature.return_annotation,
        *(each.annotation for each in signature.parameters.values()),
    }


@pytest.mark.job
@pytest.mark.parametrize(
    ("function", "command", "only_function", "only_command"),
    [
        ("record", record_command, {"environment", "reporter"}, {"quiet"}),
        ("convert", imagenet, {"reporter"}, {"as_json", "context"}),
        (
            "probe",
            probe_command,
            {"reporter"},
            {"context", "html", "json", "force", "network", "ranks", "device"},
        ),
    ],
)
def test_a_function_has_the_options_of_its_command(function, command, only_function, only_command):
    """The same names and the same defaults; only where output and messages go differs."""
    given, typed = defaults(getattr(ioprof, function)), defaults(command)
    assert (only_function, only_command) == (
        given.keys() - typed.keys(),
        typed.keys() - given.keys(),
    )
    assert {name: given[name] for name in given.keys() & typed.keys()} == {
        name: typed[name] for name in given.keys() & typed.keys()
    }


def test_the_options_below_have_the_same_defaults():
    """`ioprof.convert` passes its options on, so their defaults must agree."""
    convert_options = {field.name: field.default for field in fields(ConvertOptions)}
    assert convert_options == {
        name: default
        for name, default in defaults(ioprof.convert).items()
        if name in convert_options
    }


# --------------------------------------------------------------------- they do what the commands do


@pytest.mark.job(every=4)
def test_compare_is_the_command(tmp_path):
    """Folders, traces and runs give the table and the JSON that the command prints; the first is
    the baseline."""
    comparison = ioprof.compare(DEMO[0], ioprof.load(DEMO[1]))
    printed = jobs.ioprof("compare", *DEMO, cwd=tmp_path)
    assert str(comparison) == printed.out.rstrip("\n")
    assert comparison.to_json() + "\n" == jobs.ioprof("compare", *DEMO, "--json", cwd=tmp_path).out
    rates = [summary.throughput.steady_samples_per_s for summary in comparison.summaries]
    assert (1.0, rates[1] / rates[0]) == comparison.speedups


def test_compare_refuses_what_it_cannot_compare(tmp_path):
    """One run alone, and a folder that is none."""
    with pytest.raises(CommandError, match="two runs or more"):
        ioprof.compare(DEMO[0])
    with pytest.raises(RunError, match="not an ioprof run"):
        ioprof.compare(DEMO[0], tmp_path)


@pytest.mark.job
def test_convert_is_the_command(small_tree, tmp_path):
    """The same manifest but for the path; images are counted to the reporter."""
    messages = Messages()
    options = {"layout": "lmdb", "image": "rgb256", "quality": 80, "limit": 7, "workers": 1}
    made = ioprof.convert(small_tree, tmp_path / "api" / "data", **options, reporter=messages)
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    printed = jobs.ioprof(
        "convert",
        "imagenet",
        small_tree,
        tmp_path / "command" / "data",
        *words,
        "--json",
        cwd=tmp_path,
    )
    keys = json.loads(printed.out)
    assert (json.loads(json.dumps(made.dataset.manifest())), made.passed_over) == (
        {
            key: value
            for key, value in keys.items()
            if key not in ("path", "seconds", "passed_over")
        },
        keys["passed_over"],
    )
    assert ({"convert": 7}, 7, 0) == (messages.counts, made.images, made.resumed_images)
    with pytest.raises(CommandError, match="--layout 'tfrecord'"):
        ioprof.convert(small_tree, tmp_path / "other", layout="tfrecord")


@pytest.mark.job
def test_probe_is_the_command(tmp_path):
    """The same keys, and levels of the same tests; the numbers are each one's own."""
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    found = ioprof.probe(
        tmp_path / "data", clients=1, seconds=1, max_bytes="4M", record_bytes="64K"
    )
    words = ["--clients", 1, "--seconds", 1, "--max-bytes", "4M", "--record-bytes", "64K", "--json"]
    keys = json.loads(jobs.ioprof("probe", tmp_path / "data", *words, cwd=tmp_path).out)
    facts = json.loads(json.dumps(found.facts()))
    assert keys.keys() == facts.keys()
    same = ("path", "host", "read", "dataset", "readahead", "scratch_bytes", "allowance", "storage")
    assert {key: keys[key] for key in same} == {key: facts[key] for key in same}
    assert {level["test"] for level in keys["levels"]} == {level.test for level in found.levels}
    with pytest.raises(CommandError, match="--clients 0"):
        ioprof.probe(tmp_path / "data", clients=0)


@pytest.mark.job(every=4)
def test_record_is_the_command(tmp_path):
    """The same facts of the run; the child's exit code is kept, and no error; the run folder is
    there and loads, and it is in the store."""
    messages = Messages()
    program = [sys.executable, "-c", "import sys; sys.exit(7)"]
    store = tmp_path / "store"
    run = ioprof.record(program, out=tmp_path / "api", store=store, reporter=messages)
    assert ["api"] == [each.name for each in Store(store).runs()]
    ended = jobs.ioprof("record", "--out", tmp_path / "command", "--", *program, cwd=tmp_path)
    other = ioprof.load(tmp_path / "command").run
    assert (7, 7, 7) == (ended.code, run.trace.run.exit_code, other.exit_code)
    same = ("status", "failures", "command", "versions")
    assert [getattr(other, name) for name in same] == [
        getattr(run.trace.run, name) for name in same
    ]
    assert (tmp_path / "api", [f"run folder: {tmp_path / 'api'}"]) == (run.folder, messages.said)
    assert run.trace.spans.equals(ioprof.load(run.folder).spans)
    with pytest.raises(CommandError, match="exists; choose another --out"):
        ioprof.record(program, out=tmp_path / "api")
    with pytest.raises(CommandError, match="no such program"):
        ioprof.record(["no-such-program"], out=tmp_path / "other")
    with pytest.raises(CommandError, match="give the folder of a store"):
        ioprof.record(program, out=tmp_path / "other", store=__file__)


@pytest.mark.job(every=4)
def test_run_is_the_command(tmp_path):
    """The same configuration, device and steps."""
    messages = Messages()
    options = {"loader": "null", "steps": 6, "batch_size": 4, "device": "emulated:h100"}
    run = ioprof.run(**options, out=tmp_path / "api", command=["here"], reporter=messages)
    words = [
        word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    ended = jobs.ioprof("run", *words, "--out", tmp_path / "command", "--json", cwd=tmp_path)
    other = ioprof.load(tmp_path / "command").run
    assert (0, "complete", "complete") == (ended.code, run.trace.run.status, other.status)
    same = ("config", "device", "dataset")
    assert [getattr(other, name) for name in same] == [
        getattr(run.trace.run, name) for name in same
    ]
    assert ("here", 6, 6) == (
        run.trace.run.command,
        run.summary.steps.count,
        json.loads(ended.out)["steps"]["count"],
    )
    assert ({"null on emulated:h100, 1 ranks": 6}, tmp_path / "api") == (
        messages.counts,
        run.folder,
    )
    with pytest.raises(CommandError, match="--steps and --epochs"):
        ioprof.run(steps=1, epochs=1)


@pytest.mark.job
def test_nothing_is_printed_by_default(small_tree, tmp_path, capfd):
    """Messages go to the reporter that is given, and else nowhere."""
    ioprof.convert(small_tree, tmp_path / "data", workers=1)
    ioprof.record([sys.executable, "-c", ""], out=Path(tmp_path / "run"))
    assert ("", "") == capfd.readouterr()
