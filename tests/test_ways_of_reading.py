"""Storage bytes against the device's own count, for each way of reading files: within 2 % of it,
and none if the data is warm."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import slow_storage
from preload import needs_library
from repository import PROGRAMS

from ioprof.analysis.reads.storage_bytes import StorageBytes, by_process
from ioprof.format.trace import Trace
from ioprof.instrument.faults import refusal

pytestmark = [
    pytest.mark.system,
    needs_library,
    pytest.mark.skipif(refusal() is not None, reason=str(refusal())),
]

SIZE: Final = 12 << 20
WRONG: Final = 0.02
METADATA_BYTES: Final = 160 << 10
"""Inodes, folders and extent maps, which the device delivers too, and which no read call
returns."""
OF_LIBRARIES: Final = {"arrow", "parquet", "hdf5", "zarr", "safetensors", "litdata", "mds"}
LIBRARY_BYTES: Final = 64 << 20

WAYS: Final = (
    "read_in_order",
    "read_small",
    "read_at_random",
    "pread",
    "preadv",
    "readv",
    "ranges_with_gaps",
    "stdio",
    "sendfile",
    "copy_file_range",
    "direct",
    "fadvise",
    "fromfile",
    "memmap_in_order",
    "memmap_at_random",
    "mmap_random",
    "mmap_sequential",
    "mmap_willneed",
    "mmap_populate",
    "arrow",
    "parquet",
    "hdf5",
    "zarr",
    "safetensors",
    "lmdb_in_order",
    "lmdb_at_random",
    "litdata",
    "mds",
    "shared_library",
)


def make(folder: Path) -> list[str]:
    """The ways whose data could be made in `folder`."""
    command = [sys.executable, PROGRAMS / "make_ways_of_reading.py", folder, *WAYS]
    made = subprocess.run(
        list(map(str, command)), check=True, capture_output=True, text=True, timeout=300
    )
    print(made.stderr)
    return [word for word in made.stdout.split() if word in WAYS]


def record(
    disk: slow_storage.ThrottledDisk, ways: list[str], out: Path
) -> dict[str, tuple[int, StorageBytes]]:
    """For each way what the device delivered, and what was recorded of the process that read."""
    program = [PROGRAMS / "ways_of_reading.py", "all", Path(disk.device).name, disk.path, *ways]
    command = [
        sys.executable,
        "-m",
        "ioprof",
        "record",
        "--quiet",
        "--out",
        out,
        "--",
        sys.executable,
        *program,
    ]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert 0 == ended.returncode, ended.stderr
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")
    ]
    found = {pid: each for (_, pid), each in by_process(Trace.load(out)).items()}
    return {line["way"]: (line["device"], found[line["pid"]]) for line in lines}


def print_table(title: str, found: dict[str, tuple[int, StorageBytes]]) -> None:
    print(
        f"\n{title:18} {'device':>11} {'kernel':>11} {'calls':>11} {'faults':>11} {'untimed':>9}"
        f" {'error':>7}"
    )
    for way, (device, each) in found.items():
        error = (each.by_calls + each.by_faults - device) / device if device else 0.0
        numbers = (
            f"{device:11,} {each.kernel:11,} {each.by_calls:11,} {each.by_faults:11,}"
            f" {each.untimed:9,}"
        )
        print(f"{way:18} {numbers} {error:7.1%}")


@pytest.mark.system(every=4)
def test_storage_bytes_are_those_of_the_device(tmp_path: Path) -> None:
    """What read calls and page faults fetched, by process, for every way whose library is
    installed; first cold, then warm."""
    with slow_storage.throttled_disk(tmp_path, 700 << 20) as disk:
        ways = make(disk.path)
        slow_storage.evict(disk.path)
        cold = record(disk, ways, tmp_path / "cold")
        with slow_storage.in_memory(*(disk.path / way for way in ways)):
            warm = record(disk, ways, tmp_path / "warm")
    print_table("cold", cold)
    print_table("warm", warm)
    # A kernel that is short of memory evicts parts of libraries, which the process then reads from
    # another device.
    more = {way: LIBRARY_BYTES if way in OF_LIBRARIES else 0 for way in cold}
    wrong = {
        way: (device, each)
        for way, (device, each) in cold.items()
        if not 0
        <= each.kernel - device + WRONG * device
        <= 2 * WRONG * device + METADATA_BYTES + more[way]
    }
    assert {} == wrong
    timed = [
        way
        for way, (device, each) in cold.items()
        if each.untimed <= WRONG * device + METADATA_BYTES
    ]
    # minor faults are recorded within a budget; the others' bytes are shown as not timed
    assert len(timed) >= 15
    assert len(ways) == len(cold) >= 15
    assert all(device > SIZE / 4 for device, _ in cold.values())
    assert {} == {
        way: each
        for way, (device, each) in warm.items()
        if way != "direct" and each.kernel > METADATA_BYTES + more[way]
    }
