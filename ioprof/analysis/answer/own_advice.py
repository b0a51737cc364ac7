"""What to change where the training process itself reads and decodes, in its main thread or in
others.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from ioprof.analysis.answer.evidence import LEAST_NAMED_RATIO, Evidence
from ioprof.analysis.cpu.code_lines import line_text, shortened
from ioprof.format.run_record import Advice, CauseDetail, CodeShare

OWN_MEANING: Final = {
    "storage": "reads from storage",
    "page_cache": "reads served from memory",
    "decode": "decoding",
    "transform": "transforming samples",
    "collate": "collating samples",
    "loader": "its sampler",
}

_TOKENS: Final = "Tokenize the text once before training, and store the tokens"
_PACKED: Final = "Store the data uncompressed, or compressed by a method that decompresses faster"
_TABLES: Final = (
    "Store the data in a form that needs less parsing, in chunks or files as large as what a sample"
    " needs"
)
_SHORTER: Final = (
    "Decode less for each sample (a shorter part, reached by a seek, or stored smaller), or use a"
    " faster decoder"
)
_DECODE_LESS: Final = {
    ("tokenizers.", "transformers."): _TOKENS,
    ("zlib.", "gzip.", "bz2", "lzma.", "compression.", "zstandard.", "lz4."): _PACKED,
    (
        "numpy.",
        "h5py.",
        "zarr.",
        "pyarrow.",
        "pandas.",
        "polars.",
        "safetensors.",
        "torch.",
    ): _TABLES,
    (
        "cv2.VideoCapture",
        "av.",
        "torchcodec.",
        "torchvision.io.video",
        "soundfile.",
        "torchaudio.",
    ): _SHORTER,
}
"""What makes decoding cheaper, by the first letters of the decoder's name; a name that is not here
is of an image."""
PEERS: Final = ("tcp://", "http://", "https://", "unix:", "unix socket of ", "pipe:", "pipe from ")
"""How the names of sockets and pipes begin, which have no data to copy."""
_LEAST_IDLE_CORES: Final = 0.5
"""Cores that were idle on average, from which on more threads are advised."""

Lines = Iterator[str | Advice]
"""What to change. A text alone makes the bound cost less by an amount that is not known: of its
gain only the most is predicted."""


def own_advice(evidence: Evidence, bound: str) -> Lines:
    """What to change where the training process itself reads and decodes."""
    if evidence.is_by_threads(bound):
        yield from _of_threads(evidence, bound)
        return
    spent = (
        f"a step spends {ms(evidence.seconds_per_step(bound))} on {OWN_MEANING[bound]} in the"
        " training process itself"
    )
    detail = evidence.largest_detail(bound) if bound in ("storage", "page_cache") else None
    name = shortened(detail.name) if detail else "the data"
    if ".so" in PurePosixPath(name).name:
        yield (
            f"Copy the environment of {name} to node-local storage before the job starts: {spent},"
            " where its pages are first used"
        )
        return
    if detail and detail.name.startswith(PEERS):
        yield (
            f"Receive from {name} in other threads or processes, ahead of the step that uses it, or"
            f" ask for more at once: a step waits {ms(evidence.seconds_per_step(bound))} for what"
            " others send to the training process itself"
        )
        return
    if bound == "storage":
        yield (
            f"{copy_of(evidence, name)}, or read it once before the job starts if memory can hold"
            f" it: {spent}"
        )
    where = "in the loader's workers" if evidence.has_loader else "in other processes or threads"
    work = f"Read {name}" if bound in ("storage", "page_cache") else "Do this work"
    yield f"{work} {where}, ahead of the step that uses it: {spent}"


def _of_threads(evidence: Evidence, bound: str) -> Lines:
    """What to change where threads of the training process read and decode, and its loop waits for
    them.
    """
    detail, line = evidence.largest_detail(bound, LEAST_NAMED_RATIO), evidence.largest_line(bound)
    is_read = bound in ("storage", "page_cache")
    name, where = (
        shortened(detail.name) if detail and is_read else "the data",
        f" at {line_text(line)}" if line else "",
    )
    spent = (
        f"threads of the training process spend {ms(evidence.seconds_per_step(bound))} a step on"
        f" {OWN_MEANING[bound]} while the loop waits for them"
    )
    if is_read and detail and detail.name.startswith(PEERS):
        yield f"Receive from {name} in more threads or processes, or ask for more at once: {spent}"
        return
    if bound == "storage":
        yield (
            f"{copy_of(evidence, name)}, or read it once before the job starts if memory can hold"
            f" it: {spent}"
        )
    less = "Read less for each sample" if is_read else "Do less for each sample"
    if bound == "decode":
        less = (
            decode_less(detail)
            or "Decode less for each sample (fewer images, or smaller ones), or use a faster decoder"  # noqa: E501
        )
    text = f"{less}{where}: {spent}"
    yield of_line(evidence, text, bound, line) if line else text
    who = (
        "processes"
        if evidence.lock_holder
        else "threads, or among processes if it holds Python's interpreter lock"
    )
    cpu = evidence.cpu
    idle_cores = (cpu.idle_ratio or 0.0) * (cpu.cores or 0) if cpu and not cpu.limits else 0.0
    if bound == "storage":
        yield f"Divide this work among more {who}, if storage serves more reads at a time: {spent}"
    elif idle_cores >= _LEAST_IDLE_CORES:
        yield (
            f"Divide this work among more {who} ({idle_cores:.1f} cores were idle on average):"
            f" {spent}"
        )


def copy_of(evidence: Evidence, name: str) -> str:
    """To have data on faster storage: on the node, where it is not there already."""
    is_local = {place.kind for place in evidence.run.storage if place.kind} <= {"local", "memory"}
    there = bool(evidence.run.storage) and is_local
    return f"Copy {name} to {'a faster disk' if there else 'faster, node-local storage'}"


def decode_less(detail: CauseDetail | None) -> str | None:
    """What makes decoding by this decoder cheaper; None: it is of images, or not known."""
    return next(
        (
            advice
            for names, advice in _DECODE_LESS.items()
            if detail and detail.name.startswith(names)
        ),
        None,
    )


def of_line(evidence: Evidence, text: str, cause: str, line: CodeShare) -> Advice:
    """Advice that makes a line of code take less: no more of the cause than its function takes."""
    part, error = evidence.part_of_cause(cause, line)
    return Advice(text, cause=cause, part=part, part_error=error)


def ms(seconds: float | None) -> str:
    """Milliseconds, as a text."""
    return "an unknown time" if seconds is None else f"{seconds * 1e3:,.2f} ms"


def of_detail(evidence: Evidence, text: str, cause: str, detail: CauseDetail) -> Advice:
    """Advice that makes a named part of a cause take less: no more of the cause than that part."""
    seconds = evidence.charged[cause].seconds
    return Advice(text, cause=cause, part=min(1.0, detail.seconds / seconds) if seconds else None)
