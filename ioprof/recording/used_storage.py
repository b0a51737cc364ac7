"""What the files that a job read lie on, found on its host when it has ended: for files.parquet,
and `storage` in run.json.
"""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from ioprof.analysis.reads.sources import is_access
from ioprof.format.run_record import UsedStorage
from ioprof.format.trace import Trace
from ioprof.storage import PathStorage
from ioprof.storage.description import describe_mount
from ioprof.storage.kernel_text import Roots, Unknown
from ioprof.storage.lustre import Lustre, layout_at
from ioprof.storage.mounts import mount_number, mount_of_number
from ioprof.storage.wording import layout_text, plain

_MOST_FOLDERS: Final = 2000
"""One file is examined in each of so many folders, most read first: each may be a request to a
server."""
_MOST_LAYOUTS: Final = 64
"""So many files on Lustre are asked for their stripes."""
_NFS: Final = ("nfs", "nfs4")


def with_storage(trace: Trace) -> Trace:
    """The trace with file systems, devices and stripes of its files; unchanged on another host than
    that of the job.
    """
    hosts = trace.sums["host"].drop_nulls().unique().to_list()
    if hosts != [socket.gethostname()]:
        return trace
    read = _files_read(trace)
    folders = read.group_by("folder", maintain_order=True).agg(
        pl.col("path").first(), pl.col("bytes").sum()
    )
    folders = folders.sort("bytes", descending=True, maintain_order=True).head(_MOST_FOLDERS)
    numbers = [_mount_number(Path(path)) for path in folders["path"]]
    known: dict[int, PathStorage] = {}
    for number, path in zip(numbers, folders["path"], strict=True):
        if number and number not in known:
            known[number] = _of_mount(number, Path(path))
    used = folders.with_columns(
        file_system=pl.Series(
            [known[number].file_system if number else None for number in numbers], dtype=pl.String
        ),
        device=pl.Series(
            [device_of(known[number]) if number else None for number in numbers], dtype=pl.String
        ),
    )
    places = [_used_storage(hosts[0], storage) for storage in known.values() if storage.file_system]
    return trace.with_facts(
        run=trace.run.replace(storage=tuple(places)),
        files=_with_storage_columns(trace.files, read, used),
    )


def _files_read(trace: Trace) -> pl.DataFrame:
    """The files of which a byte was read, most read first."""
    sums = trace.summed(
        lambda part: part.filter(is_access).group_by("file").agg(pl.col("bytes").sum()), ["file"]
    ).lazy()
    files = (
        trace.files.lazy()
        .select("file", "path")
        .drop_nulls()
        .filter(pl.col("path").str.starts_with("/"))
    )
    read = files.join(sums, on="file").sort(["bytes", "file"], descending=[True, False])
    return read.with_columns(folder=pl.col("path").str.replace("/[^/]*$", "")).collect()


def _mount_number(path: Path) -> int | None:
    """By a file of the folder, which may be a link to elsewhere; by the folder if that file is
    gone.
    """
    for place in (path, path.parent):
        try:
            number = mount_number(place, Roots())
        except (OSError, ValueError):
            continue
        return None if isinstance(number, Unknown) else number
    return None


def _of_mount(number: int, path: Path) -> PathStorage:
    return describe_mount(path, mount_of_number(number, Roots()), Roots())


def device_of(storage: PathStorage) -> str | None:
    """One name for what a mount reads from: its block devices, or the name of its file system or
    export; None for memory without a block device.
    """
    if storage.kind == "memory" and not storage.devices:
        return None
    if isinstance(storage.network, Lustre):
        return storage.network.file_system
    if storage.devices:
        return "+".join(device.name for device in storage.devices)
    below = [name for layer in storage.layers if (name := device_of(layer.storage))]
    return "+".join(dict.fromkeys(below)) or storage.source


def _counter_series(storage: PathStorage) -> Iterator[str]:
    """The sampled series of the bytes that came from it."""
    if isinstance(storage.network, Lustre):
        yield f"lustre.{storage.network.file_system}.fetched_bytes"
    elif storage.file_system in _NFS:
        yield f"nfs.{storage.mount_point}.fetched_bytes"
    elif storage.devices:
        yield from (f"disk.{device.name}.read_bytes" for device in storage.devices)
    else:
        for layer in storage.layers:
            yield from _counter_series(layer.storage)


def _used_storage(host: str, storage: PathStorage) -> UsedStorage:
    series = tuple(dict.fromkeys(_counter_series(storage)))
    return UsedStorage(
        host=host,
        device=device_of(storage),
        file_system=storage.file_system,
        mount_point=str(storage.mount_point),
        kind=storage.kind,
        delivered=series,
        reason=None
        if series
        else f"{storage.file_system} has no counters that every user may read",
        facts=plain(storage),
    )


def _with_storage_columns(
    files: pl.DataFrame, read: pl.DataFrame, used: pl.DataFrame
) -> pl.DataFrame:
    known = read.join(
        used.select("folder", "file_system", "device"), on="folder", maintain_order="left"
    )
    layouts = list(_layouts(known))
    striped = pl.DataFrame(
        {
            name: [layout[place] for layout in layouts]
            for place, name in enumerate(("file", "stripe_count", "layout"))
        },
        schema={"file": pl.Int64, "stripe_count": pl.Int64, "layout": pl.String},
    )
    found = known.select("file", "file_system", "device").join(striped, on="file", how="left")
    joined = files.join(found, on="file", how="left", suffix="_found", maintain_order="left")
    columns = ("file_system", "device", "stripe_count", "layout")
    return joined.with_columns(
        pl.coalesce(name, f"{name}_found").alias(name) for name in columns
    ).select(files.columns)


def _layouts(known: pl.DataFrame) -> Iterator[tuple[int, int, str]]:
    for number, path in (
        known.filter(pl.col("file_system") == "lustre")
        .head(_MOST_LAYOUTS)
        .select("file", "path")
        .rows()
    ):
        layout = layout_at(Path(path))
        if not isinstance(layout, Unknown):
            yield number, layout.stripe_count, layout_text(layout)
