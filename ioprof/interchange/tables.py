"""All spans of a run as one Parquet file for DuckDB, pandas, Spark and the like: texts instead of
numbers and categories.
"""

from pathlib import Path

import polars as pl

from ioprof.files import replaced_file
from ioprof.format.trace import ROWS_IN_GROUP, Trace
from ioprof.interchange.exported import Exported


def write_table(trace: Trace, path: Path) -> Exported:
    """Write the file `path`, whole or not at all: `Trace.spans` with `path` for `file`, and `role`
    and `worker` of the process.
    """
    processes = pl.DataFrame(
        [(record.host, record.pid, record.role, record.worker) for record in trace.run.processes],
        schema={"host": pl.String, "pid": pl.Int32, "role": pl.String, "worker": pl.Int32},
        orient="row",
    ).unique(["host", "pid"], keep="first")
    files = trace.files.select("file", "path").unique("file", keep="first")
    texts = pl.col("kind", "host", "source", "name").cast(pl.String)
    found = trace.scan().with_columns(texts).join(files.lazy(), on="file", how="left")
    whole = found.join(processes.lazy(), on=["host", "pid"], how="left").drop("file")
    with replaced_file(path) as temporary:
        whole.sink_parquet(temporary, compression="zstd", row_group_size=ROWS_IN_GROUP)
    spans = trace.sums.group_by(pl.col("kind").cast(pl.String)).agg(pl.col("spans").sum())
    return Exported(dict(spans.rows()))
