"""Batches made by NVIDIA DALI: its readers, threads and decoders, on the CPU or a GPU; optional
(`pip install 'ioprof[dali]'`).

One thread of a pipeline reads, however many decode. Where DALI maps files (LMDB always, others but
on file systems that several hosts share) its reads are page faults, of the decoding threads where
each image is a file. DALI does not say which batch a thread works for, so the spans are those of
the consumer alone: `wait`, and `deliver` for what it does with a finished batch.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from ioprof.errors import CommandError, DatasetError, IoprofError, LoaderError
from ioprof.file_systems import file_system_of, is_shared
from ioprof.format.dataset import Dataset, open_environment
from ioprof.instrument.manual import wait_for_batch
from ioprof.instrument.span import span
from ioprof.loaders.base import Batch, LoaderOptions, LoadingFacts
from ioprof.loaders.dali_parts import ListedPart, Part, StoredPart
from ioprof.loaders.dali_pipelines import (
    READER,
    filled_environments,
    first_undecodable,
    is_installed,
    make_pipeline,
)
from ioprof.loaders.tar_index import check_tar_index

if TYPE_CHECKING:
    from torch import Tensor

_ERRORS: Final = (RuntimeError, UnicodeDecodeError)
"""Of DALI: the latter where its message quotes bytes of a file that are no UTF-8."""
_TENSOR_PROTOS: Final = b"\n"
"""First byte of a Caffe2 `TensorProtos`: field 1, with a length."""


class DaliBackend:
    """Reads what ioprof has converted, in any layout."""

    layouts: ClassVar[tuple[str, ...]] = ("files", "lmdb", "webdataset")

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        assert dataset is not None
        self._dataset, self._options = dataset, options

    def check(self) -> None:
        """Raise `CommandError` where DALI is missing or cannot read the data, and what the layout's
        own loader would raise.
        """
        from ioprof.loaders import open_records

        if not is_installed():
            raise CommandError("--loader dali: DALI is not installed; pip install 'ioprof[dali]'")
        open_records(self._dataset.layout, self._dataset, self._options).check()
        if self._dataset.layout == "lmdb":
            self._check_values()
        if self._dataset.layout == "webdataset":
            for tar in self._dataset.shard_paths():
                check_tar_index(tar)

    def loader(self) -> "DaliLoader":
        """The batches of one rank."""
        return DaliLoader(self._dataset, self._options)

    def _check_values(self) -> None:
        environment = open_environment(filled_environments(self._dataset)[0])
        try:
            with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
                is_ours = cursor.first() and bytes(cursor.value()[:1]) == _TENSOR_PROTOS
        finally:
            environment.close()
        if not is_ours:
            raise CommandError(
                f"--loader dali: {self._dataset.path} holds no Caffe2 TensorProtos; use --loader"
                " lmdb"
            )


class DaliLoader:
    """Runs one pipeline in the rank's own process."""

    def __init__(
        self, dataset: Dataset, options: LoaderOptions, maps_files: bool | None = None
    ) -> None:
        """`maps_files`: DALI maps files of other layouts than LMDB; None: where that costs no round
        trip per page.
        """
        self._dataset, self._options = dataset, options
        self._maps_files = (
            not is_shared(file_system_of(str(dataset.path))) if maps_files is None else maps_files
        )
        self._part: Part = (ListedPart if dataset.layout == "files" else StoredPart)(
            dataset, options
        )

    def facts(self) -> LoadingFacts:
        """DALI decodes by itself."""
        return LoadingFacts()

    def lost_worker(self) -> str | None:
        """None: there are no workers, only threads."""
        return None

    def __iter__(self) -> Iterator[Batch]:
        pipeline = self._built()  # here and now, as other loaders start their workers
        for _ in range(self._part.skipped_runs):
            self._run(pipeline, self._options.first_batch)
        return self._deliver(pipeline)

    def _deliver(self, pipeline: Any) -> Iterator[Batch]:
        for number in range(self._options.first_batch, self._options.num_batches):
            with wait_for_batch(number):
                runs = [self._run(pipeline, number) for _ in range(self._part.runs(number))]
                with span("deliver", batch=number):
                    images, labels = _joined(
                        [(_images(pipeline, run[0]), _labels(run[1])) for run in runs],
                        self._part.samples(number),
                    )
            yield Batch(number, images, labels)

    def _built(self) -> Any:
        with tempfile.NamedTemporaryFile("w", prefix="ioprof-dali-", suffix=".txt") as listed:
            if isinstance(self._part, ListedPart):
                listed.writelines(self._part.lines())
                listed.flush()
            try:
                pipeline = make_pipeline(
                    self._dataset, self._options, Path(listed.name), self._maps_files
                )
                pipeline.build()
                found = pipeline.reader_meta(READER)
            except _ERRORS as error:
                raise LoaderError(
                    f"{self._dataset.path}: DALI cannot begin ({_reason(error)})"
                ) from None
        if (found["epoch_size"], found["epoch_size_padded"]) != (
            self._part.epoch_size,
            self._part.padded_epoch_size,
        ):
            sizes = (
                f"{found['epoch_size']} records, {found['epoch_size_padded']} with what fills"
                " them up"
            )
            raise LoaderError(
                f"{self._dataset.path}: DALI finds {sizes}, where {self._part.epoch_size} were"
                " expected"
            )
        return pipeline

    def _run(self, pipeline: Any, number: int) -> tuple[Any, Any]:
        try:
            images, labels = pipeline.run()
        except _ERRORS as error:
            raise self._about(number, _reason(error)) from None
        return images, labels

    def _about(self, number: int, reason: str) -> IoprofError:
        """The error, with the record's name: DALI's message seldom has it, and refers to its own
        source code.
        """
        from ioprof.loaders import open_records

        records = open_records(self._dataset.layout, self._dataset, self._options)
        suspects = ((index, records.read(index)) for index in self._part.in_progress(number))
        found = first_undecodable(suspects, records.raw_shape)
        if found is None:
            return LoaderError(
                f"{self._dataset.path}: DALI could not make batch {number} ({reason})"
            )
        index, num_bytes = found
        return DatasetError(
            f"{records.name(index)}: image of {num_bytes} bytes cannot be decoded (DALI: {reason})"
        )


# -------------------------------------------------------------------------------- what DALI returns


def _images(pipeline: Any, made: Any) -> "Tensor":
    """As a tensor of torch's: of DALI's own memory where that stays as it is (its dynamic
    executor's), otherwise a copy.
    """
    from torch.utils.dlpack import from_dlpack

    found = from_dlpack(made.as_tensor())
    if found.is_cuda:
        return _copied_on_gpu(found)
    return found if getattr(pipeline, "exec_dynamic", False) else found.clone()


def _copied_on_gpu(images: "Tensor") -> "Tensor":
    """A copy that is complete: DALI may take its memory back while other streams still read from
    it. Some 10 µs of the GPU's.
    """
    import torch

    stream = torch.cuda.Stream(images.device)
    with torch.cuda.stream(stream):
        copied = images.clone()
    stream.synchronize()
    return copied


def _labels(made: Any) -> "Tensor":
    """int64; `webdataset` has them as text."""
    import torch

    if made.is_dense_tensor() and made.dtype.name == "INT32":
        return torch.from_numpy(np.array(made.as_tensor()).reshape(-1).astype(np.int64))
    texts = [bytes(np.asarray(made.at(place))) for place in range(len(made))]
    wrong = next((text for text in texts if not (len(text) < 10 and text.isdigit())), None)
    if wrong is not None:
        raise DatasetError(f"a record has the label {wrong[:20]!r}; convert the dataset again")
    return torch.tensor([int(text) for text in texts], dtype=torch.int64)


def _joined(runs: list[tuple["Tensor", "Tensor"]], samples: int) -> tuple["Tensor", "Tensor"]:
    import torch

    images, labels = (
        runs[0] if len(runs) == 1 else (torch.cat(parts) for parts in zip(*runs, strict=True))
    )
    return images[:samples], labels[:samples]


def _reason(error: RuntimeError | UnicodeDecodeError) -> str:
    """DALI's message without the operator's place in our source: the first line after
    `encountered:`.
    """
    text = (
        error.object.decode(errors="backslashreplace")
        if isinstance(error, UnicodeDecodeError)
        else str(error)
    )
    lines = [
        line.strip() for line in text.partition("encountered:")[2].splitlines() or text.splitlines()
    ]
    return next((line for line in lines if line), type(error).__name__)[:200]
