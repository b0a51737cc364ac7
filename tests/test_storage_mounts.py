"""The storage of a path on real file systems of this machine; ground truth: findmnt, lsblk and the
reads themselves."""

import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import fuse_server
import mounted
import pytest

from ioprof.errors import CommandError
from ioprof.storage import PathStorage, describe
from ioprof.storage.sample import first_entries, sample_of
from ioprof.storage.wording import lines

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


def kernel_says(path: Path, column: str) -> str:
    """A column of findmnt for the mount that a path is on."""
    command = ["findmnt", "--noheadings", "--first-only", "--output", column, "--target", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def settings(device: str, *columns: str) -> list[str]:
    """Columns of lsblk for a block device."""
    command = [
        "lsblk",
        "--noheadings",
        "--nodeps",
        "--bytes",
        "--output",
        ",".join(columns),
        device,
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.job
@pytest.mark.skipif(not shutil.which("findmnt"), reason="findmnt is not installed")
def test_every_mount_of_this_machine_is_described_as_findmnt_does(tmp_path: Path) -> None:
    """Point, type and source of all mounts here; folders that cannot be entered are skipped, and so
    are mounts that other programs add or remove during the test."""
    points = subprocess.run(
        ["findmnt", "--noheadings", "--list", "--output", "TARGET"],
        check=True,
        capture_output=True,
        text=True,
    )
    for path in {tmp_path, *map(Path, points.stdout.split())}:
        before = mounted_at(path)
        try:
            if os.access(path, os.X_OK) and path.is_dir():
                said, found = (
                    (kernel_says(path, "FSTYPE"), kernel_says(path, "TARGET")),
                    describe(path),
                )
                assert before != mounted_at(path) or said == (found.file_system, found.mount_point)
                assert found.source
                assert lines(found)
        except (CommandError, OSError, subprocess.CalledProcessError):
            assert before != mounted_at(path)


def mounted_at(path: Path) -> list[str]:
    """What the kernel says of the mounts at that point."""
    return [
        line
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if line.split()[4] == str(path)
    ]


def loop_of(found: PathStorage) -> str:
    (device,) = found.devices
    return device.name


@pytest.mark.system
@needs_root
@pytest.mark.parametrize("file_system", ["ext4", "xfs", "btrfs"])
def test_an_image_on_a_loop_device_is_followed_to_its_file(
    tmp_path: Path, file_system: str
) -> None:
    """Type, device and its settings as lsblk shows them; the image's own storage is the layer
    below, and gives the kind."""
    if reason := mounted.missing(file_system):
        pytest.skip(reason)
    image, point = mounted.made_image(tmp_path / "disk.img", file_system), tmp_path / "disk"
    with mounted.mounted_image(image, point) as device:
        (point / "file").write_bytes(b"x" * 8192)
        found, below = describe(point), describe(image)
        said = settings(device, "ROTA", "SCHED", "LOG-SEC", "PHY-SEC", "SIZE", "RQ-SIZE")
    (loop,) = found.devices
    assert (file_system, str(point), Path(device).name) == (
        found.file_system,
        found.mount_point,
        loop.name,
    )
    mine = (
        loop.rotational,
        loop.scheduler,
        loop.logical_block_bytes,
        loop.physical_block_bytes,
        loop.size_bytes,
        loop.num_requests,
    )
    assert said == [str(int(value) if isinstance(value, bool) else value) for value in mine]
    assert ("loop", str(image)) == (loop.transport, loop.backing_file)
    assert [(f"backing file of {loop.name}", below)] == [
        (layer.role, layer.storage) for layer in found.layers
    ]
    assert below.kind == found.kind
    assert (True, True, str(point / "file")) == (
        found.answers_nowait,
        found.counts_blocks,
        found.sample,
    )


@pytest.mark.system
@needs_root
def test_an_image_in_an_image_is_followed_to_the_bottom(tmp_path: Path) -> None:
    """A loop device on a loop device in memory: two layers, and the kind is memory."""
    if reason := mounted.missing("ext4"):
        pytest.skip(reason)
    with mounted.mounted(tmp_path / "memory", "none", "-t", "tmpfs", "-o", "size=1g") as memory:
        outer = mounted.made_image(memory / "outer.img", "ext4")
        with mounted.mounted_image(outer, tmp_path / "outer"):
            inner = tmp_path / "outer" / "inner.img"
            with inner.open("wb") as file:
                file.truncate(64 << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", str(inner)], check=True, capture_output=True)
            with mounted.mounted_image(inner, tmp_path / "inner"):
                found = describe(tmp_path / "inner")
    (layer,) = found.layers
    (bottom,) = layer.storage.layers
    assert ("memory", "memory", "memory") == (found.kind, layer.storage.kind, bottom.storage.kind)
    assert ("ext4", "ext4", "tmpfs") == (
        found.file_system,
        layer.storage.file_system,
        bottom.storage.file_system,
    )
    assert loop_of(found) != loop_of(layer.storage)


@pytest.mark.system
@needs_root
def test_an_overlay_is_what_its_folders_are(tmp_path: Path) -> None:
    """Upper and lower folders, also with blanks and colons in their names, each with its own
    storage."""
    with mounted.mounted(tmp_path / "memory", "none", "-t", "tmpfs") as memory:
        for name in ("up per", "work"):
            (memory / name).mkdir()
        lower = tmp_path / "lo:wer"
        lower.mkdir()
        (lower / "file").write_text("x")
        options = (
            f"lowerdir={str(lower).replace(':', chr(92) + ':')},upperdir={memory}/up"
            f" per,workdir={memory}/work"
        )
        try:
            with mounted.mounted(
                tmp_path / "both", "overlay", "-t", "overlay", "-o", options
            ) as point:
                found = describe(point)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no overlay can be mounted here: {error.stderr!r}")
        expected = [("upper", describe(memory / "up per")), ("lower", describe(lower))]
    assert expected == [(layer.role, layer.storage) for layer in found.layers]
    assert ("overlay", (), False) == (found.file_system, found.devices, found.answers_nowait)
    assert describe(tmp_path).kind == found.kind


@pytest.mark.system
@needs_root
def test_a_bind_mount_is_the_mount_that_it_is(tmp_path: Path) -> None:
    """The same device number as the folder around it, and another mount: neither prefix nor st_dev
    would tell."""
    with mounted.mounted(tmp_path / "memory", "none", "-t", "tmpfs") as memory:
        (tmp_path / "bound").mkdir()
        with mounted.mounted(tmp_path / "bound", str(memory), "--bind"):
            found = describe(tmp_path / "bound")
            assert (str(tmp_path / "bound"), "tmpfs") == (found.mount_point, found.file_system)
            link = tmp_path / "link"
            link.symlink_to(tmp_path / "bound")
            assert str(tmp_path / "bound") == describe(link).mount_point


@pytest.mark.system
@needs_root
def test_a_fuse_mount_is_not_guessed_at(tmp_path: Path) -> None:
    """A program may keep its files anywhere: its subtype, its readahead, and no more, neither of
    place nor of sources."""
    if reason := fuse_server.missing():
        pytest.skip(reason)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(b"x" * 8192)
    with fuse_server.fuse_server(tmp_path / "served") as served:
        found = describe(served.path)
        ahead = Path(
            f"/sys/class/bdi/0:{os.minor(served.path.stat().st_dev)}/read_ahead_kb"
        ).read_text()
        assert kernel_says(served.path, "FSTYPE") == found.file_system
    assert ("unknown", False, False, ()) == (
        found.kind,
        found.answers_nowait,
        found.counts_blocks,
        found.devices,
    )
    assert int(ahead) * 1024 == found.read_ahead_bytes
    assert "can store its files anywhere" in found.unknown["kind"]
    assert "only its duration is known" in dict(lines(found))["cold or warm"]


@pytest.mark.system
@needs_root
@pytest.mark.parametrize(
    ("subtype", "kind"), [("glusterfs", "shared"), ("squashfuse", "that of the image")]
)
def test_a_fuse_mount_that_is_known_is_what_its_program_is(
    tmp_path: Path, subtype: str, kind: str
) -> None:
    """A client of servers is shared; a reader of images has the storage of the image."""
    if reason := fuse_server.missing():
        pytest.skip(reason)
    (tmp_path / "served").mkdir()
    image = tmp_path / "image.sqfs"
    image.write_bytes(b"")
    source = str(image) if subtype == "squashfuse" else "10.0.0.1:/volume"
    with fuse_server.fuse_server(tmp_path / "served", subtype=subtype, source=source) as served:
        found = describe(served.path)
    if kind == "shared":
        assert ("shared", ("10.0.0.1",)) == (found.kind, found.network and found.network.servers)
    else:
        assert [("image", describe(image))] == [
            (layer.role, layer.storage) for layer in found.layers
        ]
        assert describe(image).kind == found.kind


def test_what_is_said_of_nowait_is_what_reading_shows(tmp_path: Path) -> None:
    """For every kind of file here: the kernel takes RWF_NOWAIT on a byte that is cached, or refuses
    the flag, as was said."""
    (tmp_path / "file").write_bytes(b"x" * 100)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as in_memory:
        in_memory.write(b"x" * 100)
        in_memory.flush()
        for path in (tmp_path / "file", Path("/proc/self/status"), Path(in_memory.name)):
            found = describe(path)
            assert str(path) == found.sample
            with open(path, "rb", buffering=0) as file:
                file.read(1)
                try:
                    os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
                except BlockingIOError:
                    answered = True
                except OSError:
                    answered = False
                else:
                    answered = True
            assert answered == found.answers_nowait, path


@needs_root
def test_describing_reads_nothing(tmp_path: Path) -> None:
    """What is cold stays cold: after a description no page of the file is resident, so that a probe
    may follow it."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if _resident_pages(path):
        pytest.skip("this file system keeps its pages")
    assert describe(path).answers_nowait is not None
    assert str(path) == describe(tmp_path).sample
    assert 0 == _resident_pages(path)


def test_a_file_is_found_below_a_thousand_folders(tmp_path: Path) -> None:
    """In a tree of split, class and file; where there is no file, that is the reason."""
    assert "no file that this user may read" in describe(tmp_path).unknown["sample"]
    for number in range(1000):
        (tmp_path / "train" / f"n{number:08}").mkdir(parents=True)
        (tmp_path / "train" / f"n{number:08}" / "image.JPEG").write_bytes(b"x")
    found = describe(tmp_path).sample
    assert found is not None
    assert Path(found).name == "image.JPEG"


def test_what_goes_away_meanwhile_is_passed_over(tmp_path: Path) -> None:
    """In a folder in use, a file that was listed may be removed before its status is read: another
    one is the sample."""
    (tmp_path / "going").write_bytes(b"x" * 100)
    (tmp_path / "staying").write_bytes(b"x")

    def gone_when_listed(folder: str, most: int) -> list["os.DirEntry[str]"]:
        entries = first_entries(folder, most)
        (tmp_path / "going").unlink()
        return entries

    assert tmp_path / "staying" == sample_of(tmp_path, tmp_path.stat(), gone_when_listed)


def _resident_pages(path: Path) -> int:
    """By mincore(2), as the owner of the file."""
    with (
        path.open("rb") as file,
        mmap.mmap(
            file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE
        ) as view,
    ):
        pages = (ctypes.c_ubyte * (len(view) // mmap.PAGESIZE))()
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        assert 0 == ctypes.CDLL(None).mincore(
            ctypes.c_void_p(address), ctypes.c_size_t(len(view)), pages
        )
        return sum(page & 1 for page in pages)


def test_a_device_file_is_its_device() -> None:
    """`/dev` is in memory; what a device file stands for is not."""
    names = [
        name
        for name in sorted(os.listdir("/sys/block"))
        if Path(f"/dev/{name}").is_block_device() and not name.startswith("loop")
    ]
    if not names:
        pytest.skip("no block device has a file in /dev here")
    found = describe(Path(f"/dev/{names[0]}"))
    assert ([names[0]], None) == ([device.name for device in found.devices], found.file_system)


def test_a_path_in_memory_is_memory() -> None:
    """Nothing is fetched, so nothing is cold."""
    found = describe(Path("/proc/self/status"))
    assert ("memory", "proc", (), None) == (
        found.kind,
        found.file_system,
        found.devices,
        found.network,
    )
    assert "all reads are from memory" in dict(lines(found))["cold or warm"]
