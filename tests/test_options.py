"""An option is declared once: command line, Python and the job's configuration have it from
there."""

import inspect
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from typer import Typer
from typer.testing import CliRunner

import ioprof
from ioprof.cli.options import takes_options as takes_command_options
from ioprof.cli.run import run as run_command
from ioprof.errors import CommandError
from ioprof.jobs.options import RunOptions
from ioprof.jobs.training_run import plan_job
from ioprof.loaders.base import LoadingOptions
from ioprof.options import Option, declarations, given_options, takes_options, values_of
from ioprof.reporter import SILENT
from ioprof.train.config import JobConfig
from ioprof.train.options import JobOptions

ADDED = ("depth", Annotated[int, Option("Depth of the queue.", "Loader", least=1, most=9)], 3)


def added_to(options: type, **settings: Any) -> type:
    """The class with one more option, and nothing else."""
    return make_dataclass(
        f"More{options.__name__}", [ADDED], bases=(options,), frozen=True, kw_only=True, **settings
    )


def typed(options: type, *words: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code and output of a command with these options, and what it was given."""
    found: dict[str, Any] = {}
    app = Typer()
    app.command()(takes_command_options(options)(lambda given: found.update(given)))
    ended = CliRunner().invoke(app, words, env={"COLUMNS": "200", "NO_COLOR": "1"})
    return ended.exit_code, ended.output, found


def test_an_added_option_reaches_the_command_line() -> None:
    """Help with the default, and the value, which is passed on if it was given."""
    more = added_to(RunOptions)
    code, help_text, _ = typed(more, "--help")
    (line,) = [line for line in help_text.splitlines() if "--depth" in line]
    assert (0, True) == (
        code,
        all(part in line for part in ("<int>", "Depth of the queue.", "[default: 3]")),
    ), line
    assert {"depth": 5, "dataset": Path("data")} == typed(more, "data", "--depth", "5")[2]
    assert {"depth": 3} == typed(more, "--depth", "3")[2]
    assert {} == typed(more)[2]
    assert 2 == typed(more, "--depth", "deep")[0]


def test_an_added_option_reaches_python() -> None:
    """Name, type and default in the signature; the value in the options, with the name among those
    that were given."""
    more = added_to(RunOptions)

    @takes_options(more)
    def run(options: Any) -> Any:
        """Return the options."""
        return options

    parameter = inspect.signature(run).parameters["depth"]
    assert (int, 3) == (parameter.annotation, parameter.default)
    assert (3, False) == (run().depth, "depth" in run(depth=None).given)
    assert (3, True) == (run(depth=3).depth, "depth" in run(depth=3).given)
    with pytest.raises(TypeError, match="depht"):
        run(depht=1)
    with pytest.raises(CommandError, match="--depth 10: give a number from 1 to 9"):
        run(depth=10)


def test_an_added_option_reaches_the_ranks(tmp_path: Path) -> None:
    """The configuration takes it from the options, and what the ranks read has it."""
    job, run = added_to(JobOptions), added_to(RunOptions)
    config = dataclass(frozen=True, kw_only=True)(type("MoreConfig", (JobConfig, job), {}))(
        **values_of(job, run(depth=7))
    )
    config.save(tmp_path / "job.json")
    assert 7 == type(config).load(tmp_path / "job.json").depth


def test_the_job_is_told_every_option(tmp_path: Path) -> None:
    """Each option of the training job has the same name and type in its configuration, and each of
    a loader in the loader's."""
    shared = {each.name: each.kind for each in declarations(JobOptions)}
    assert shared.keys() <= {each.name for each in declarations(RunOptions)}
    given = {
        "loader": "null",
        "seed": 7,
        "steps": 3,
        "threads": 2,
        "copy": "pinned",
        "out": tmp_path / "run",
    }
    config = plan_job(given_options(RunOptions, given), {}, SILENT).config
    assert {**given, "out": None} == {name: getattr(config, name, None) for name in given}
    assert values_of(LoadingOptions, config) == values_of(LoadingOptions, config.loader_options(0))


def test_command_and_function_have_the_same_options() -> None:
    """Names, order, and defaults, but for those that the help has in words."""
    typed_ones = {
        name: each.default for name, each in inspect.signature(run_command).parameters.items()
    }
    given = {name: each.default for name, each in inspect.signature(ioprof.run).parameters.items()}
    names = [each.name for each in declarations(RunOptions)]
    assert (
        names
        == [name for name in given if name in names]
        == [name for name in typed_ones if name in names]
    )
    in_words = {each.name for each in declarations(RunOptions) if each.option and each.option.unset}
    assert {name: given[name] for name in names if name not in in_words} == {
        name: typed_ones[name] for name in names if name not in in_words
    }
    assert {None} == {typed_ones[name] for name in in_words}


def test_every_option_says_what_it_is() -> None:
    """A sentence for the help, and a default or what holds without it."""
    for each in declarations(RunOptions):
        assert each.option is not None
        assert each.option.help.endswith("."), each.name
        assert each.option.unset or each.default in (None, False, 0) or str(each.default)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": 0}, "--ranks 0: give 1 or more"),
        ({"steps": 0}, "--steps 0: give 1 or more"),
        ({"cache": "hot"}, "--cache hot: unknown; choose one of cold, warm, as-is"),
        ({"parallel": "tensor"}, "--parallel tensor: unknown; choose one of data, pipeline, fsdp"),
    ],
)
def test_python_is_refused_what_the_command_line_is(given: dict[str, Any], message: str) -> None:
    """One line that names the option, the value, and what may be given."""
    with pytest.raises(CommandError, match=f"^{message}"):
        ioprof.run(**given)
