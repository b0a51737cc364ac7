"""Writes the spans of a spool folder to a file in blocks, so that memory does not depend on how
many there are.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from ioprof.files import replaced_file
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import ROWS_IN_GROUP, ROWS_IN_MEMORY, Inventory, Trace, table_schema
from ioprof.ingest.page_faults.mapped_bytes import credit_mapped_bytes, processes_to_credit
from ioprof.ingest.reader import Spool
from ioprof.ingest.written_files import WrittenFiles


def store_spool(
    folder: Path, run: RunRecord, path: Path, rows_in_memory: int = ROWS_IN_MEMORY
) -> Trace:
    """The trace of a spool folder, with the bytes of its faults. More than `rows_in_memory` spans
    are written to the file `path`.

    Raises `CaptureError` if there is no such folder, and OSError or an error of polars where the
    file cannot be written.
    """
    spool = Spool(folder, run)
    if spool.num_spans <= rows_in_memory:
        return _with_written_files(credit_mapped_bytes(spool.trace()))
    held, written = _credited(spool), WrittenFiles()

    def all_blocks() -> Iterator[pl.DataFrame]:
        for block in chain(spool.blocks(), [held.spans]):
            written.add(block)
            yield block
        yield written.spans()

    inventory, blocks = Inventory(), all_blocks()

    def next_block() -> pl.DataFrame | None:
        if (block := next(blocks, None)) is not None:
            inventory.add(block)
        return block

    with ThreadPoolExecutor(1) as thread, replaced_file(path) as temporary:
        following = thread.submit(next_block)  # blocks are read while those before are compressed

        def read(
            columns: list[str] | None, predicate: pl.Expr | None, limit: int | None, _: int | None
        ) -> Iterator[pl.DataFrame]:
            assert (columns, predicate, limit) == (None, None, None), "the file has all spans"
            nonlocal following
            while (block := following.result()) is not None:
                following = thread.submit(next_block)
                yield block

        source = register_io_source(read, schema=table_schema(SPAN_COLUMNS))
        source.sink_parquet(
            temporary,
            compression="zstd",
            compression_level=1,
            row_group_size=ROWS_IN_GROUP,
            engine="streaming",
        )
    return replace(held, spans=inventory.stored(path))


def _with_written_files(trace: Trace) -> Trace:
    written = WrittenFiles()
    written.add(trace.spans)
    found = written.spans()
    return trace if found.is_empty() else replace(trace, spans=pl.concat([trace.spans, found]))


def _credited(spool: Spool) -> Trace:
    """`Spool.held` with the bytes of its faults."""
    held = spool.held
    calls = [
        spool.storage_calls(host, pid, times)
        for (host, pid), times in processes_to_credit(held).items()
    ]
    with_calls = replace(held, spans=pl.concat([held.spans, *calls]))
    return replace(held, spans=credit_mapped_bytes(with_calls).spans.head(len(held.spans)))
