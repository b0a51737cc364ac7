"""LMDB values by reads of the file: the same bytes as LMDB's own, each in one read, and from a
hostile file nothing but errors."""

import random
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
import slow_storage
from hooked import recorded, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_datasets import made
from preload import LIBRARY, needs_library, reads_of
from strategies import examples

from ioprof.errors import DatasetError
from ioprof.format.dataset import Dataset
from ioprof.loaders import open_records
from ioprof.loaders.base import LMDB_READS, LoaderOptions
from ioprof.loaders.lmdb_pages import LmdbPages
from ioprof.loaders.lmdb_readahead import Watch, available_bytes, choose
from ioprof.loaders.lmdb_records import MappedValues

KEY = "{:08d}_{}"


def environment(
    folder: Path, values: list[bytes], first: int = 0, order: list[int] | None = None
) -> Path:
    """Records with names of several lengths, appended, or put in another order; returns the
    file."""
    with lmdb.open(str(folder), map_size=1 << 28, lock=False, sync=False) as opened:
        # a transaction each, so that pages are used again
        for number in order or range(len(values)):
            with opened.begin(write=True) as transaction:
                transaction.put(
                    KEY.format(first + number, "n" * (number % 40)).encode(), values[number]
                )
    return folder / "data.mdb"


def all_values(path: Path, entries: int, first: int = 0) -> list[bytes]:
    pages = LmdbPages(str(path), first, entries)
    return [bytes(pages.value(first + number)) for number in range(entries)]


@settings(max_examples=examples(30))
@given(
    st.lists(st.integers(0, 9000), min_size=1, max_size=150),
    st.integers(0, 10**7),
    st.randoms(use_true_random=False),
)
def test_values_are_those_that_lmdb_returns(tmp_path_factory, sizes, first, chosen):
    """Within a leaf or on pages of their own, appended or put in any order, from whatever number
    on."""
    values = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    order = chosen.sample(range(len(sizes)), len(sizes))
    assert values == all_values(
        environment(tmp_path_factory.mktemp("data"), values, first, order), len(sizes), first
    )


def test_a_tree_of_several_levels_is_walked(tmp_path):
    """20,000 records: branches of branches."""
    values = [b"%d" % number * 40 for number in range(20_000)]
    with lmdb.open(str(tmp_path), map_size=1 << 28, lock=False, sync=False) as opened:
        with opened.begin(write=True) as transaction:
            for number, value in enumerate(values):
                transaction.put(KEY.format(number, "x" * 100).encode(), value, append=True)
        assert opened.stat()["depth"] >= 3
    assert values == all_values(tmp_path / "data.mdb", len(values))


def test_what_is_not_there_is_said(tmp_path):
    """A number without a record, and an environment without records."""
    path = environment(tmp_path / "some", [b"a"] * 5)
    with pytest.raises(DatasetError, match=r"data\.mdb: record 5 is missing"):
        LmdbPages(str(path), 0, 9).value(5)
    with lmdb.open(str(tmp_path / "none"), lock=False):
        pass
    with pytest.raises(DatasetError, match=r"data\.mdb: its records are not a plain tree"):
        LmdbPages(str(tmp_path / "none" / "data.mdb"), 0, 1)
    with pytest.raises(
        DatasetError, match=r"data\.mdb: cannot be read \(No such file or directory\)"
    ):
        LmdbPages(str(tmp_path / "missing" / "data.mdb"), 0, 1)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> bytes:
    """A file with two levels, small and large values."""
    values = [bytes(number % 7 * 900) for number in range(120)]
    return environment(tmp_path_factory.mktemp("sound"), values).read_bytes()


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_hostile_file_gives_values_or_errors(sound, tmp_path, data):
    """Whatever bytes are changed, and wherever it is cut: what is read is within the file, and
    errors are ours, of one line."""
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 8))):
        page = data.draw(st.integers(0, len(content) // 4096 - 1)) * 4096
        place = page + data.draw(st.integers(0, 160) | st.integers(0, 4095))
        for byte in data.draw(st.binary(min_size=1, max_size=8)):
            content[place % len(content)] = byte
            place += 1
    path = tmp_path / "data.mdb"
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    for said in refusals(path):
        assert len(said.splitlines()) == 1


def refusals(path: Path) -> list[str]:
    """What is said of the file, or of each of its records that cannot be had."""
    try:
        pages = LmdbPages(str(path), 0, 120)
    except DatasetError as error:
        return [str(error)]
    said = []
    for number in range(120):
        try:
            assert len(pages.value(number)) <= path.stat().st_size
        except DatasetError as error:
            said.append(str(error))
    return said


def test_a_tree_that_leads_to_itself_ends(sound, tmp_path):
    """Every page is made the root's copy, with its own number: there is an end to going down."""
    root = int.from_bytes(sound[4096 + 16 + 24 + 48 + 40 :][:8], "little")
    content = bytearray(sound)
    for page in range(2, len(content) // 4096):
        content[page * 4096 : (page + 1) * 4096] = (
            page.to_bytes(8, "little") + sound[root * 4096 + 8 : (root + 1) * 4096]
        )
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(DatasetError):
        LmdbPages(str(tmp_path / "data.mdb"), 0, 120).value(60)


# -------------------------------------------------------------------------------------- as a loader


@pytest.fixture(scope="module")
def dataset(small_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The small tree as LMDB of raw pixels, whose values lie on pages of their own; for reading
    only."""
    folder = tmp_path_factory.mktemp("lmdb") / "data"
    return made(small_tree, folder, layout="lmdb", image="rgb256", encoding="raw", size=64)


@pytest.mark.job(every=4)
@needs_library
def test_each_value_is_one_read_of_its_own_pages(dataset, tmp_path):
    """A read per record, of the pages that hold it, and no fault; besides them only pages of the
    tree, each once."""
    records = dataset.records
    program = f"""
import sys
from pathlib import Path
from ioprof.format.dataset import Dataset
from ioprof.loaders import make_loader
from ioprof.loaders.base import LoaderOptions
options = LoaderOptions(6, {2 * records // 6}, workers=0, crop=16, lmdb_read="pread")
list(make_loader("lmdb", Dataset.load(Path(sys.argv[1])), options))
"""
    run(["-c", program, dataset.path], tmp_path / "spool", LD_PRELOAD=str(LIBRARY))
    trace = recorded(tmp_path / "spool")
    assert 0 == len(trace.spans.filter(kind="fault"))
    reads = reads_of(trace, dataset.data_path / "data.mdb")
    reads = reads.filter(reads["bytes"] > 0)
    values = reads.filter(reads["bytes"] > 4096)
    own = 64 * 64 * 3
    assert all(own < size < own + 2 * 4096 and size % 4096 == 0 for size in values["bytes"])
    assert 2 * records == len(values)
    assert records == values["offset"].n_unique()
    pages = reads.filter((reads["bytes"] == 4096) & (reads["offset"] % 4096 == 0))
    assert len(pages) == pages["offset"].n_unique()
    assert set(values["batch"]) == set(range(2 * records // 6))


@pytest.mark.parametrize("read", LMDB_READS)
def test_nothing_is_left_beside_the_data(dataset, read):
    """No lock file: nobody writes to a dataset, and locks fail on many cluster file systems."""
    before = sorted(path.name for path in dataset.path.rglob("*"))
    open_records("lmdb", dataset, LoaderOptions(1, 1, lmdb_read=read)).read(0)
    assert before == sorted(path.name for path in dataset.path.rglob("*"))


@pytest.mark.parametrize("readahead", [False, True])
def test_readahead_is_what_the_kernel_was_told(dataset, readahead):
    """The mapping is marked for random access, or it is not (proc_pid_smaps, VmFlags: `rr`)."""
    pages = LmdbPages(str(dataset.data_path / "data.mdb"), 0, dataset.records)
    values = MappedValues(dataset.data_path, None if readahead else pages)
    assert values.value(3)
    about = Path("/proc/self/smaps").read_text().split(f"{dataset.data_path / 'data.mdb'}\n")[1]
    flags = next(line for line in about.splitlines() if line.startswith("VmFlags:")).split()
    assert readahead == ("rr" not in flags)


def test_readahead_depends_on_size_memory_and_device(dataset, tmp_path):
    """What was asked for; else on where windows are larger than a record, and the data fits in
    memory."""
    path = dataset.data_path / "data.mdb"
    assert (True, "asked") == choose("on", path, 1, 1 << 60)
    assert (False, "asked") == choose("off", path, 1, 1)
    found = choose("auto", path, 1, 1 << 60)
    if found.reason == "shared" or choose("auto", path, 1 << 40, 1 << 60).reason != "small window":
        pytest.skip(
            "what is read ahead here is not to be found in /sys, or the file system is shared:"
            f" {found}"
        )
    assert (False, "larger than memory") == found
    assert (False, "small window") == choose("auto", path, 1 << 40, 1 << 60)
    assert (True, "fits in memory") == choose("auto", path, 1, 74, memory_bytes=100)
    assert (False, "larger than memory") == choose("auto", path, 1, 76, memory_bytes=100)


def test_the_limit_of_a_control_group_is_memory_that_data_can_take(tmp_path):
    """The least of what is available and of the limits of the group and of those above it, of both
    versions."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("7:cpu,memory:/job/step\n0::/job/step\n")
    assert 8000 << 10 == available_bytes(tmp_path / "proc", tmp_path / "groups")
    (tmp_path / "groups/job/step").mkdir(parents=True)
    (tmp_path / "groups/job/step/memory.max").write_text("max\n")
    (tmp_path / "groups/job/memory.max").write_text("5000000\n")
    assert 5000000 == available_bytes(tmp_path / "proc", tmp_path / "groups")
    (tmp_path / "groups/memory/job/step").mkdir(parents=True)
    (tmp_path / "groups/memory/job/step/memory.limit_in_bytes").write_text("4000000\n")
    assert 4000000 == available_bytes(tmp_path / "proc", tmp_path / "groups")
    # without what processes take of them: of a usage, what is not files
    (tmp_path / "groups/memory/job/step/memory.usage_in_bytes").write_text("3500000\n")
    (tmp_path / "groups/memory/job/step/memory.stat").write_text(
        "inactive_file 5\ntotal_inactive_file 400000\ntotal_active_file 100000\n"
    )
    assert 1000000 == available_bytes(tmp_path / "proc", tmp_path / "groups")
    (tmp_path / "groups/job/memory.current").write_text("4500000\n")
    (tmp_path / "groups/job/memory.stat").write_text("inactive_file 200000\nactive_file 0\n")
    assert 700000 == available_bytes(tmp_path / "proc", tmp_path / "groups")


def test_readahead_is_given_up_once_data_was_read_twice():
    """More than all of it, by one process; and only where more than the value was fetched."""
    watch = Watch(1000)
    assert [False, False, True] == [watch.is_lost(10, size) for size in (600, 400, 11)]
    assert not watch.is_lost(10, 10)
    assert Watch(1 << 62).is_lost(10, 11)


READING = """
import mmap
import random
import sys
from pathlib import Path

from ioprof.format.dataset import Dataset
from ioprof.loaders import open_records
from ioprof.loaders.base import LoaderOptions

data, takes, when = Dataset.load(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
records, wanted, held = open_records("lmdb", data, LoaderOptions(1, 1)), 0, []

def take():
    memory = mmap.mmap(-1, takes)
    for place in range(0, takes, 4096):
        memory[place] = 1
    held.append(memory)

if when == "before":
    take()
for epoch in range(4):
    for index in random.Random(epoch).sample(range(data.records), data.records):
        wanted += len(records.read(index).data)
    if when == "later" and not epoch:
        take()
print(wanted)
"""


@pytest.mark.system(every=4)
@pytest.mark.parametrize("when", ["before", "later"])
def test_no_more_is_read_than_is_wanted_if_the_processes_leave_no_room(small_tree, tmp_path, when):
    """The data would fit into the limit of the group, of which the process takes most, from the
    start or from some time on; the device reads ahead far more than a record."""
    with slow_storage.throttled_disk(tmp_path, 128 << 20) as disk:
        window = Path("/sys/class/block", Path(disk.device).name, "queue/read_ahead_kb")
        window.write_text("2048")
        options = {"layout": "lmdb", "image": "rgb256", "encoding": "raw"}
        data = made(small_tree, disk.path / "data", **options)
        size = (data.data_path / "data.mdb").stat().st_size
        slow_storage.evict(disk.path)
        with slow_storage.bounded_memory((128 << 20) + 3 * size) as memory:

            def join():
                disk.join()
                memory.join()

            before = disk.read_bytes()
            ended = subprocess.run(
                [sys.executable, "-c", READING, data.path, str((96 << 20) + 2 * size), when],
                preexec_fn=join,
                capture_output=True,
                text=True,
                check=False,
            )
            assert 0 == ended.returncode, ended.stderr
            fetched = disk.read_bytes() - before
    assert fetched <= 1.3 * int(ended.stdout)
