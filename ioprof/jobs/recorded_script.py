"""A recorded script that is recorded again, as it is or with other arguments of the loader that it
trains from.
"""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ioprof.analysis.answer.provable import (
    TrainingLoader,
    check_arguments,
    loader_arguments,
    training_loader,
)
from ioprof.errors import CommandError
from ioprof.format.run_record import JobChange, LoaderRecord, RunRecord
from ioprof.instrument.loader_change import LoaderChange
from ioprof.instrument.variables import CHANGE_VARIABLE
from ioprof.masking import is_masked, masked_command
from ioprof.recording.command import record_command
from ioprof.recording.parts import own_part
from ioprof.recording.run_folder import JOB_LOG
from ioprof.report.texts.units import visible
from ioprof.reporter import Reporter

if TYPE_CHECKING:
    from ioprof.report.run import Run

_LONGEST_LINE: Final = 200
_AGAIN: Final = "ioprof prove RUN --advice N --"
_GIVE: Final = f"give the command: {_AGAIN} COMMAND"
_BY_HAND: Final = (
    "make the change in the script, record it, and see what came of it with: ioprof compare RUN"
    " OTHER_RUN"
)


@dataclass(frozen=True)
class RecordedScript:
    """What is run again, and what is changed in it."""

    command: tuple[str, ...]
    loader: TrainingLoader
    arguments: Mapping[str, Any]
    """The new ones, by name."""
    loaders: tuple[LoaderRecord, ...]
    """All of the recorded run."""

    @classmethod
    def of(
        cls,
        run: RunRecord,
        change: JobChange,
        given: Sequence[str] | None,
        environment: Mapping[str, str],
    ) -> "RecordedScript":
        """Of a recorded run and a change of its advice; `given` is a command that is run instead of
        the recorded one.

        `CommandError` where ioprof cannot make the change, where the run does not say which loader
        it is about, or where the command cannot be run here.
        """
        arguments = loader_arguments(change)
        if arguments is None:
            raise CommandError(
                "of a script ioprof can change arguments of torch's DataLoader alone"
            )
        if run.part is not None or run.parts or own_part(environment) is not None:
            raise CommandError(
                "a job of several recordings, one for each host or task, is not run again by"
                f" ioprof: {_BY_HAND}"
            )
        try:
            loader = training_loader(run)
            check_arguments(arguments, loader.record)
        except CommandError as error:
            raise CommandError(
                f"ioprof changes none of the job's loaders: {error}; {_BY_HAND}"
            ) from None
        command = tuple(given) if given else _recorded_command(run)
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise CommandError(f"{command[0]}: no such program here; {_GIVE}")
        return cls(command, loader, arguments, run.loaders)

    @property
    def shown(self) -> tuple[str, ...]:
        """The command, as it may be printed and stored: secrets in it are masked."""
        return tuple(masked_command(self.command))

    @property
    def change_text(self) -> str:
        """In words: `num_workers=4 instead of 1, of the DataLoader made at train.py:20 (dataset
        Images, batches of 16)`.
        """
        before = self.loader.record.arguments
        changes = (
            f"{name}={value} instead of {before[name]}" for name, value in self.arguments.items()
        )
        others = len(self.loaders) > self.loader.num_made
        return (
            f"{', '.join(changes)}, of"
            f" {self.loader.text}{'; its other loaders stayed as they were' if others else ''}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """In what the prediction is not of the change that is made."""
        found = (
            f"for the prediction, {each.text} counts as one to train from, since its batches are"
            " taken outside of torch.no_grad(); in the runs it stayed as it was"
            for each in self.loader.others
        )
        return tuple(dict.fromkeys(found))

    def run(
        self,
        out: Path,
        *,
        is_changed: bool,
        force: bool,
        environment: Mapping[str, str],
        reporter: Reporter,
    ) -> "Run":
        """Record it into the folder `out`. `CommandError` where it failed, or where its loaders are
        not as they should be.
        """
        own = {name: value for name, value in environment.items() if name != CHANGE_VARIABLE}
        if is_changed:
            own[CHANGE_VARIABLE] = LoaderChange(self.arguments, self.loader.numbers).to_text()
        made = record_command(
            self.command, out, own, force=force, reporter=reporter, in_series=True
        )
        if made.trace.run.status == "interrupted":
            raise CommandError("interrupted; nothing was compared", exit_code=130)
        if made.trace.run.status != "complete":
            failure = next((each.what for each in made.trace.run.failures), "the command failed")
            how = "with the change" if is_changed else "without the change"
            what = f"{failure} {how}, so nothing can be compared{_last_line(out)}"
            raise CommandError(f"{out}: {what}; all of its output: {out / JOB_LOG}", exit_code=1)
        self.check(made.trace.run, out, is_changed=is_changed)
        return made

    def check(self, made: RunRecord, out: Path, *, is_changed: bool) -> None:
        """`CommandError` if the training loader of a new run is not as it should be, or another one
        is not as it was.
        """
        recorded = self.loader.record
        change = LoaderChange(self.arguments if is_changed else {}, self.loader.numbers)
        own = [each for each in made.loaders if change.is_of(each.path, each.number)]
        if not own:
            raise CommandError(
                f"{out}: nothing was changed, since it used no loader like {recorded.text} of the"
                " recorded run: the script was edited since, or does something else this time;"
                f" record it again with ioprof record, or {_GIVE}",
                exit_code=1,
            )
        expected = {
            **{name: recorded.arguments[name] for name in self.arguments},
            **change.arguments,
        }
        for each in own:
            if wrong := next(
                (name for name, value in expected.items() if each.arguments[name] != value), None
            ):
                why = (
                    "its class sets that itself"
                    if is_changed
                    else "the script or its command is not the recorded one"
                )
                what = (
                    f"{each.text} has {wrong}={each.arguments[wrong]}, not {expected[wrong]}: {why}"
                )
                raise CommandError(f"{out}: {what}; nothing can be compared", exit_code=1)
        for each in made.loaders:
            before = next(
                (old for old in self.loaders if (old.path, old.number) == (each.path, each.number)),
                None,
            )
            is_other = each not in own and (
                each.replaced or (before is not None and before.arguments != each.arguments)
            )
            if is_other or (
                each in own and "step" in recorded.purposes and "step" not in each.purposes
            ):
                what = (
                    f"{each.text} was changed too, and it is not the one that the job trains from"
                )
                raise CommandError(f"{out}: {what}; nothing can be compared", exit_code=1)


def _recorded_command(run: RunRecord) -> tuple[str, ...]:
    """The command of the run. `CommandError` where it is not known, or was run in another folder
    than this.
    """
    try:
        words = tuple(shlex.split(run.command or ""))
    except ValueError:
        words = ()
    if not words:
        raise CommandError(f"the run does not say by which command it was made; {_GIVE}")
    if is_masked(words):
        shown = visible(shlex.join(words))
        raise CommandError(
            f"secrets in its command were masked when it was recorded; give it whole: {_AGAIN}"
            f" {shown}"
        )
    if run.directory is not None and Path(run.directory).resolve() != Path.cwd().resolve():
        raise CommandError(
            f"its command was recorded in {run.directory}, and this is {Path.cwd()}: type cd"
            f" {shlex.quote(run.directory)} first, or {_GIVE}"
        )
    return words


def _last_line(out: Path) -> str:
    """What a failed command wrote last, as a part of a sentence."""
    try:
        lines = (out / JOB_LOG).read_text(errors="replace").splitlines()[1:]
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" (its last line: {last[:_LONGEST_LINE]})" if last else ""
