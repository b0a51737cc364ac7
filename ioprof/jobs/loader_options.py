"""Options of `ioprof run` that are about some loaders or datasets: refused where what was given
would be ignored.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from ioprof.errors import CommandError
from ioprof.format.dataset import Dataset
from ioprof.jobs.options import WHILE_TRAINING, RunOptions
from ioprof.loaders.base import ACCEPT, LMDB_READS

MAP, READ = LMDB_READS


class _Reading(NamedTuple):
    """How a job reads, as far as options depend on it."""

    options: RunOptions
    loader: str
    dataset: Dataset | None

    @property
    def of_layout(self) -> str:
        """The loader, and what it reads, if its name does not say that."""
        if self.loader not in ("threads", "dali") or self.dataset is None:
            return self.loader
        return f"{self.loader} on the layout {self.dataset.layout}"


def check_loader_options(options: RunOptions, loader: str, dataset: Dataset | None) -> None:
    """Raise `CommandError` for an option that was given, and that this loader on this dataset would
    ignore.
    """
    reading = _Reading(options, loader, dataset)
    for name, why in IGNORED.items():
        reason = why(reading) if name in options.given else None
        if reason is not None:
            raise CommandError(f"--{name.replace('_', '-')} {getattr(options, name)}{reason}")


def read_of_lmdb(options: RunOptions, loader: str) -> str:
    """How `lmdb` and `raw` are read: one of `LMDB_READS`."""
    return READ if loader == "threads" else options.lmdb_read


def _lmdb_read(reading: _Reading) -> str | None:
    layout = reading.dataset.layout if reading.dataset is not None else None
    reads_both_ways = reading.loader in ("lmdb", "raw")
    if not reads_both_ways and (reading.loader != "threads" or layout not in ("lmdb", "raw")):
        return f": is about --loader lmdb and raw, and this is {reading.of_layout}; leave it out"
    if reading.options.lmdb_read == READ:
        return None
    if reading.loader == "threads":
        why = "since a page fault of a map stops all threads"
        return f": --loader threads reads by {READ}, {why}; leave it out, or give --loader {layout}"
    return f": {_FILLS}; leave it out" if reading.options.stage_mode == WHILE_TRAINING else None


def _lmdb_readahead(reading: _Reading) -> str | None:
    if reading.loader != "lmdb" or reading.options.lmdb_read == READ:
        what = reading.of_layout if reading.loader != "lmdb" else f"--lmdb-read {READ}"
        return f": is about --loader lmdb --lmdb-read {MAP}, and this is {what}; leave it out"
    return f": {_FILLS}; leave it out" if reading.options.stage_mode == WHILE_TRAINING else None


_FILLS: Final = f"--stage-mode {WHILE_TRAINING} reads by {READ}"


def _decode(reading: _Reading) -> str | None:
    found = _own_decoder(reading)
    if found is None and _stores(reading, "raw", "png"):
        return f": is about JPEGs, and {_encoded(reading)}; leave it out"
    return found


def _on_corrupt(reading: _Reading) -> str | None:
    found = _own_decoder(reading)
    if found is None and reading.options.on_corrupt == ACCEPT and _stores(reading, "raw", "png"):
        return f": is about JPEGs, and {_encoded(reading)}; leave it out"
    return found


def _own_decoder(reading: _Reading) -> str | None:
    if reading.loader in ("null", "dali"):
        return f": --loader {reading.loader} does not decode by ioprof's own decoder; leave it out"
    return None


def _stores(reading: _Reading, *encodings: str) -> bool:
    """Whether all images of the job are stored in these encodings."""
    has_others = reading.options.eval_data is not None
    return (
        reading.dataset is not None
        and reading.dataset.image.encoding in encodings
        and not has_others
    )


def _encoded(reading: _Reading) -> str:
    assert reading.dataset is not None
    return f"the images of {reading.dataset.path} are stored as {reading.dataset.image.encoding}"


def _workers(reading: _Reading) -> str | None:
    if reading.loader == "null":
        return ": the null loader has no workers; leave --workers out, or choose another --loader"
    if reading.loader == "dali" and reading.options.workers == 0:
        return ": --loader dali has at least one thread; give --workers 1"
    return None


def _reads_nothing(reading: _Reading) -> str | None:
    if reading.loader == "null":
        return " is about a dataset's files, and --loader null reads none; leave it out"
    return None


IGNORED: Final[dict[str, Callable[[_Reading], str | None]]] = {
    "workers": _workers,
    "lmdb_read": _lmdb_read,
    "lmdb_readahead": _lmdb_readahead,
    "decode": _decode,
    "on_corrupt": _on_corrupt,
    "cache": _reads_nothing,
    "stage_to": _reads_nothing,
}
"""Of each option that some loader ignores: why a job ignores its value, as the rest of a message;
None: it does not."""
