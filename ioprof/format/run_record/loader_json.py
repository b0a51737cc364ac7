"""What run.json says of the DataLoaders of a job, by which a later run tells them apart."""

from collections.abc import Iterable
from typing import Any

from msgspec import field

from ioprof.format.run_record.record import Count, Record, SmallCount


class LoaderRecord(Record, frozen=True):
    """A DataLoader of torch, or of a class derived from it, from which ranks received batches; one
    record for all ranks.
    """

    path: str | None = None
    """A digest of the lines of code through which it was made, the same in every run of the same
    program. Null: not known."""
    number: Count | None = None
    """Among the loaders of that path in its process, in order. Null: one of the later ones, or not
    known."""
    made_at: str | None = None
    """The innermost line of the job's own code that made it: `train.py:20`."""
    class_name: str | None = field(default=None, name="class")
    dataset: str | None = None
    """Class of its dataset."""
    sampler: str | None = None
    """Class of what chooses its samples, or whole batches of them."""
    batch_size: SmallCount | None = None
    workers: SmallCount | None = None
    """`num_workers`, as it was in effect."""
    prefetch: Count | None = None
    """`prefetch_factor`. Null: it has no workers."""
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    purposes: tuple[str, ...] = ()
    """What its batches were received for: `train`, `validate`, or `no gradients`, before the first
    step of training. `step`: a step of the job ended after one of those to train on. `no step`: two
    of them came in a row, and none ended in between, as where gradients are accumulated, or wanted
    while the job validates."""
    replaced: dict[str, Any] = field(default_factory=dict)
    """Arguments that `ioprof prove` changed, with the values that the job gave. Empty: none, as in
    every other run."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Those that can be changed, as they were in effect, by the names that DataLoader gives
        them.
        """
        return {
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch,
            "persistent_workers": self.persistent_workers,
            "pin_memory": self.pin_memory,
        }

    @property
    def is_trained_from(self) -> bool:
        """Whether the job made a step with a batch of it to train on."""
        return {"train", "step"} <= {*self.purposes}

    @property
    def text(self) -> str:
        """In words: `the DataLoader made at train.py:20 (dataset Images, batches of 16)`."""
        batches = f", batches of {self.batch_size}" if self.batch_size else ""
        return (
            f"the {self.class_name} made at {self.made_at or 'an unknown line'} (dataset"
            f" {self.dataset}{batches})"
        )


def merge_loaders(found: Iterable[LoaderRecord]) -> tuple[LoaderRecord, ...]:
    """One record of each loader, of those that its ranks wrote for each purpose."""
    records: dict[tuple[str | None, int | None, str | None, str | None], LoaderRecord] = {}
    for record in found:
        key = record.path, record.number, record.class_name, record.dataset
        known = records.get(key)
        purposes = (*known.purposes, *record.purposes) if known else record.purposes
        records[key] = (known or record).replace(purposes=tuple(dict.fromkeys(purposes)))
    return tuple(records.values())
