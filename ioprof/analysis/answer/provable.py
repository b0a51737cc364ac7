"""Which advice of a run `ioprof prove` can carry out itself, and which loader of a recorded script
it is about.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.format.run_record import Finding, JobChange, JobKind, LoaderRecord, RunRecord

_NEED_WORKERS: Final = ("prefetch_factor", "persistent_workers")


@dataclass(frozen=True)
class TrainingLoader:
    """The loader that a job trains from, which it may make more than once."""

    record: LoaderRecord
    """Of the first of them."""
    numbers: Mapping[str, frozenset[int] | None]
    """By path the numbers of those loaders. None: all of that path."""
    num_made: int = 1
    """How many of them were used, on a rank."""
    others: tuple[LoaderRecord, ...] = ()
    """Loaders to validate from, while gradients are wanted: in a replay they count as loaders to
    train from."""

    @property
    def text(self) -> str:
        """In words."""
        return (
            f"{self.record.text}, of which there are {self.num_made}"
            if self.num_made > 1
            else self.record.text
        )


def loader_arguments(change: JobChange) -> dict[str, Any] | None:
    """The new arguments of torch's DataLoader, by name. None: it changes something else as well, or
    nothing.
    """
    found: dict[str, Any] = {}
    if change.workers is not None:
        found["num_workers"] = change.workers
    if change.prefetch is not None:
        found["prefetch_factor"] = change.prefetch
    found |= {name: True for name in ("persistent_workers", "pin_memory") if getattr(change, name)}
    return (
        None
        if change.batch is not None or change.cache is not None or change.speeds or not found
        else found
    )


def training_loader(run: RunRecord) -> TrainingLoader:
    """The loader that a job trains from. `CommandError` where it cannot be told from others, which
    must stay as they are.

    A job that never wants gradients trains from none; of such a job it is the loader of all its
    batches.
    """
    if not run.loaders:
        raise CommandError(
            "it is not recorded of which DataLoaders of torch the job's batches came (there are"
            " none, or the run is of an older version of ioprof)"
        )
    trained, others = _trained(run.loaders)
    if not trained:
        raise CommandError("no batch of its loaders was trained on")
    if any(each.path is None for each in trained):
        raise CommandError("the loader that it trains from was made before the recording began")
    first = trained[0]
    if other := next((each for each in trained if not _is_like(each, first)), None):
        raise CommandError(f"it trains from several loaders: {first.text}, and {other.text}")
    numbers = {path: _numbers(run, path, trained) for each in trained if (path := each.path)}
    return TrainingLoader(first, numbers, len(trained), others)


def _trained(
    loaders: Sequence[LoaderRecord],
) -> tuple[list[LoaderRecord], tuple[LoaderRecord, ...]]:
    """Those that a job trains from, and those that only seem so; `CommandError` where that is not
    certain of one.
    """
    wanted = [each for each in loaders if "train" in each.purposes]
    stepped = [each for each in wanted if each.is_trained_from]
    if not stepped:
        return wanted or [each for each in loaders if "validate" not in each.purposes], ()
    others = [each for each in wanted if each not in stepped]
    if unclear := next((each for each in others if "no step" not in each.purposes), None):
        raise CommandError(
            f"whether it trains or validates from {unclear.text} is not certain; a validation is"
            " known as one if it takes its batches under torch.no_grad()"
        )
    return stepped, tuple(others)


def _is_like(one: LoaderRecord, other: LoaderRecord) -> bool:
    """Whether it may be the same loader, made again for another epoch."""
    same = ("made_at", "class_name", "dataset", "batch_size")
    return one.arguments == other.arguments and all(
        getattr(one, name) == getattr(other, name) for name in same
    )


def _numbers(run: RunRecord, path: str, trained: list[LoaderRecord]) -> frozenset[int] | None:
    same = [each for each in run.loaders if each.path == path]
    if all(each in trained for each in same):
        return None
    numbers = [each.number for each in same]
    if None in numbers:
        raise CommandError(
            "its loaders for training and for validation are made at one line of code, again and"
            f" again: {same[0].text}"
        )
    return frozenset(each.number for each in same if each in trained and each.number is not None)


def check_arguments(arguments: Mapping[str, Any], loader: LoaderRecord) -> None:
    """`CommandError` where a loader cannot have these new arguments, or has them already."""
    workers = arguments.get("num_workers", loader.workers)
    if not workers and (needing := [name for name in _NEED_WORKERS if arguments.get(name)]):
        raise CommandError(f"{needing[0]} needs loader workers, and {loader.text} has none")
    if all(loader.arguments[name] == value for name, value in arguments.items()):
        raise CommandError(f"{loader.text} has that already")


def can_pin(run: RunRecord) -> bool:
    """Whether the job trains from a loader of torch that does not copy its batches to page-locked
    memory.
    """
    return any("step" in each.purposes and each.pin_memory is False for each in run.loaders)


def can_be_proved(run: RunRecord, advice: Finding) -> bool:
    """Whether `ioprof prove` can carry out an advice of a run, on a machine that has what the job
    needs.
    """
    change = advice.change
    if change is None or "made_at" in advice.facts:
        return False
    if run.job_kind is JobKind.BUILT_IN:
        others = (
            change.prefetch is not None
            or change.persistent_workers
            or change.pin_memory
            or change.speeds
        )
        is_known = (
            change.workers is not None or change.batch is not None or change.cache is not None
        )
        learning = run.learning
        is_long = (
            run.config.first_step
            or run.stage
            or (learning and (learning.evaluations or learning.checkpoints))
        )
        return is_known and not others and not is_long
    arguments = loader_arguments(change)
    if arguments is None or run.part or run.parts or not run.command:
        return False
    try:
        check_arguments(arguments, training_loader(run).record)
    except CommandError:
        return False
    return True


def changes_text(loaders: Iterable[LoaderRecord]) -> str | None:
    """What was changed in a job, in words:
    `num_workers=4 instead of 1, of the DataLoader made at train.py:20 (...)`.
    """
    changed = next((each for each in loaders if each.replaced), None)
    if changed is None:
        return None
    values = changed.arguments
    changes = (
        f"{name}={values.get(name)} instead of {before}"
        for name, before in changed.replaced.items()
    )
    return f"{', '.join(changes)}, of {changed.text}"
