"""The storage of a path on other machines: mountinfo, sysfs and Lustre's files as the kernel writes
them."""

import tempfile
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_trees import disk, link, mount_line, partition, roots, slave, write

from ioprof.errors import CommandError
from ioprof.file_systems import TYPES
from ioprof.storage import PathStorage, describe
from ioprof.storage.blockdevices import BlockDevice, device_of_number
from ioprof.storage.description import describe_mount
from ioprof.storage.kernel_text import Roots, Unknown
from ioprof.storage.lustre import Lustre
from ioprof.storage.mounts import Mount, mount_in, mount_of_number
from ioprof.storage.network import Network
from ioprof.storage.wording import lines, plain

NVME = "pci0000:00/0000:00:03.0/nvme/nvme0/nvme0n1"
MAY_BE_NONE = {"network", "partition", "backing_file", "pool", "end_bytes"}
"""What None means "there is none" of, not "it is not known"."""


@pytest.fixture
def machine(tmp_path: Path) -> Roots:
    """A machine of which nothing is known yet."""
    return roots(tmp_path)


def mount(
    file_system: str,
    source: str = "none",
    options: str = "rw",
    device: str = "0:50",
    point: str = "/data",
) -> Mount:
    found = mount_in(mount_line(7, device, point, file_system, source, options).strip().encode())
    assert found
    return found


def storage(found: Mount, machine: Roots) -> PathStorage:
    described_once = describe_mount(Path(found.point), found, machine)
    assert [] == list(unexplained(described_once))
    return described_once


def unexplained(value: Any, name: str = "") -> Iterator[str]:
    """The law of every description: what is None has a reason in `unknown`, and what has a reason
    is not known."""
    if isinstance(value, tuple):
        for entry in value:
            yield from unexplained(entry, name)
    if not is_dataclass(value) or isinstance(value, type):
        return
    reasons = getattr(value, "unknown", {})
    for entry in fields(value):
        inner = getattr(value, entry.name)
        yield from unexplained(inner, f"{name}.{entry.name}")
        if (
            entry.name not in MAY_BE_NONE
            and (inner is None) != (entry.name in reasons)
            and inner not in ((), "unknown")
        ):
            yield f"{name}.{entry.name} is {inner!r}, and {reasons.get(entry.name)!r} is the reason"
    if getattr(value, "kind", None) == "unknown":
        yield from [] if reasons.get("kind") else [f"{name}.kind has no reason"]


def device(number: str, machine: Roots) -> BlockDevice:
    found = device_of_number(number, machine)
    assert isinstance(found, BlockDevice)
    assert [] == list(unexplained(found))
    return found


# ---------------------------------------------------------------------------------------- mountinfo


def test_a_line_of_mountinfo_is_read_as_the_kernel_writes_it() -> None:
    """Escaped blanks and backslashes, optional fields, an empty source, options of the mount and of
    the file system."""
    line = (
        rb"36 35 98:0 /mnt1 /mnt\0402\134x\303\251 rw,noatime master:1 shared:2 - ext3 /dev/root"
        rb" rw,errors=continue"
    )
    expected = Mount(
        36, "98:0", "/mnt 2\\xé", "ext3", "/dev/root", ("rw", "noatime", "rw", "errors=continue")
    )
    assert expected == mount_in(line)
    assert "continue" == expected.option("errors")
    assert expected.option("error") is None
    assert replace(expected, source="") == mount_in(line.replace(b"/dev/root", b""))


def test_the_mount_is_the_one_of_that_number(machine: Roots) -> None:
    """Neither the longest prefix nor the device number: a mount on top of another has the same
    point and another number."""
    text = mount_line(70, "8:1", "/data", "ext4", "/dev/sda1") + mount_line(
        7, "0:50", "/data", "nfs4", "server:/data"
    )
    write(machine.proc, {"self/mountinfo": text})
    assert "nfs4" == getattr(mount_of_number(7, machine), "file_system", None)
    assert isinstance(mount_of_number(71, machine), Unknown)


@given(st.binary(max_size=200), st.integers(0, 120))
def test_a_garbled_line_is_a_mount_or_none(noise: bytes, cut: int) -> None:
    """Any line is parsed or skipped."""
    whole = mount_line(7, "8:1", "/data", "ext4", "/dev/sda1").encode()
    for line in (noise, whole[:cut], whole[:cut] + noise, noise + b" - " + noise):
        found = mount_in(line)
        assert found is None or all(
            isinstance(text, str) for text in (found.point, found.source, found.file_system)
        )


# ------------------------------------------------------------------------------------ block devices


def test_an_nvme_partition_is_followed_to_its_disk(machine: Roots) -> None:
    """The file system's number is that of a partition; queue, model and transport are those of the
    whole disk."""
    place = disk(machine.sys, "nvme0n1", "259:0", "pci0000:00/0000:00:03.0/nvme/nvme0/nvme0n1/..")
    partition(machine.sys, place, "nvme0n1p2", "259:2")
    write(place / "device", {"transport": "pcie\n", "model": "SAMSUNG MZ  \n"})
    found = device("259:2", machine)
    assert ("nvme0n1", "nvme0n1p2", "259:0", "nvme pcie", "local") == (
        found.name,
        found.partition,
        found.number,
        found.transport,
        found.kind,
    )
    assert ("SAMSUNG MZ", "none", False, 131072, 512, 4096) == (
        found.model,
        found.scheduler,
        found.rotational,
        found.read_ahead_bytes,
        found.logical_block_bytes,
        found.physical_block_bytes,
    )
    whole = storage(mount("ext4", "/dev/nvme0n1p2", device="259:2"), machine)
    assert ("local", True, True, 131072) == (
        whole.kind,
        whole.answers_nowait,
        whole.counts_blocks,
        whole.read_ahead_bytes,
    )


@pytest.mark.parametrize(
    ("transports", "transport", "kind"),
    [
        (["tcp"], "nvme tcp", "shared"),
        (["rdma", "rdma"], "nvme rdma", "shared"),
        (["fc"], "nvme fc", "shared"),
        (["pcie", "pcie"], "nvme pcie", "local"),
    ],
)
def test_nvme_over_fabrics_is_not_this_hosts(
    machine: Roots, transports: list[str], transport: str, kind: str
) -> None:
    """With native multipath, a namespace belongs to a subsystem, and that to one controller for
    each path."""
    place = disk(machine.sys, "nvme1n1", "259:5", "virtual/nvme-subsystem/nvme-subsys1/nvme1n1/..")
    subsystem = machine.sys / "devices/virtual/nvme-subsystem/nvme-subsys1"
    for number, way in enumerate(transports):
        controller = machine.sys / f"devices/virtual/nvme-fabrics/ctl/nvme{number}"
        write(controller, {"transport": f"{way}\n", "model": "Linux\n"})
        link(subsystem / f"nvme{number}", controller)
    link(place / "device", subsystem)
    found = device("259:5", machine)
    assert (transport, kind, "Linux") == (found.transport, found.kind, found.model)


@pytest.mark.parametrize(
    ("name", "by", "transport", "kind"),
    [
        ("sda", "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0", "sata", "local"),
        (
            "sdb",
            "pci0000:00/0000:01:00.0/host1/port-1:0/end_device-1:0/target1:0:0/1:0:0:0",
            "sas",
            "local",
        ),
        ("sdc", "pci0000:00/0000:02:00.0/host2/target2:2:0/2:2:0:0", "scsi", "local"),
        ("sdd", "platform/host3/session1/target3:0:0/3:0:0:1", "iscsi", "shared"),
        (
            "sde",
            "pci0000:00/0000:03:00.0/host4/rport-4:0-2/target4:0:0/4:0:0:1",
            "fibre channel",
            "shared",
        ),
        (
            "sdf",
            "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host5/target5:0:0/5:0:0:0",
            "usb",
            "local",
        ),
        ("vda", "pci0000:00/0000:00:02.0/virtio1", "virtio", "local"),
        ("nbd3", "virtual", "nbd", "shared"),
        ("rbd0", "virtual", "rbd", "shared"),
        ("zram0", "virtual", "zram", "memory"),
        ("pmem0", "LNXSYSTM:00/ndbus0/region0/namespace0.0", "pmem", "memory"),
        ("xyz", "platform/something", None, "unknown"),
    ],
)
def test_what_a_disk_is_attached_by_is_in_its_path(
    machine: Roots, name: str, by: str, transport: str | None, kind: str
) -> None:
    """The folders that a device's path in sysfs goes through are those of its buses."""
    disk(machine.sys, name, "8:0", by)
    found = device("8:0", machine)
    assert (transport, kind) == (found.transport, found.kind)


def test_stacked_devices_are_followed_to_all_their_disks(machine: Roots) -> None:
    """A crypt on a volume on an array of one local disk and one over the network: shared, as its
    slowest part is."""
    local = disk(
        machine.sys, "sda", "8:0", "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0"
    )
    remote = disk(machine.sys, "sdb", "8:16", "platform/host3/session1/target3:0:0/3:0:0:1")
    array = disk(machine.sys, "md127", "9:127", "virtual", **{"md/level": "raid0\n"})
    volume = disk(machine.sys, "dm-0", "252:0", "virtual", **{"dm/uuid": "LVM-abc\n"})
    crypt = disk(machine.sys, "dm-1", "252:1", "virtual", **{"dm/uuid": "CRYPT-LUKS2-abc\n"})
    partition(machine.sys, local, "sda1", "8:1")
    for of, below in ((crypt, volume), (volume, array), (array, local / "sda1"), (array, remote)):
        slave(of, below)
    found = device("252:1", machine)
    assert ["dm crypt", "dm lvm", "md raid0"] == [
        found.transport,
        found.below[0].transport,
        found.below[0].below[0].transport,
    ]
    assert [("sda", "sda1"), ("sdb", None)] == [
        (leaf.name, leaf.partition) for leaf in found.leaves
    ]
    assert "shared" == found.kind
    assert ["local", "shared"] == [leaf.kind for leaf in found.leaves]


def test_a_stack_that_bites_its_tail_ends(machine: Roots) -> None:
    """No kernel makes one, but a damaged tree must not hold ioprof up."""
    one, two = (disk(machine.sys, f"dm-{number}", f"252:{number}", "virtual") for number in (0, 1))
    slave(one, two)
    slave(two, one)
    assert "unknown" == device("252:0", machine).kind


def test_an_array_of_btrfs_is_found_by_one_of_its_disks(machine: Roots) -> None:
    """Btrfs has a device number of its own; its disks are in /sys/fs/btrfs, its readahead with its
    own bdi."""
    members = [
        disk(machine.sys, f"sd{letter}", f"8:{16 * place}", f"pci0/ata{place + 1}/host0")
        for place, letter in enumerate("abc")
    ]
    for member in members[1:]:
        link(machine.sys / "fs/btrfs/0000-1111/devices" / member.name, member)
    found = storage(mount("btrfs", "/dev/sdb", device="0:31"), machine)
    assert (["sdb", "sdc"], "local") == ([part.name for part in found.devices], found.kind)


def test_sysfs_that_is_hidden_is_a_reason(machine: Roots) -> None:
    """In a container without sysfs the mount still says the type; the device is not known, nor
    whether it is local."""
    found = storage(mount("xfs", "/dev/sda1", device="8:1"), machine)
    assert ("xfs", "unknown", ()) == (found.file_system, found.kind, found.devices)
    assert "a container" in found.unknown["kind"]
    assert "a container" in found.unknown["devices"]


@given(
    st.dictionaries(
        st.sampled_from(
            ["rotational", "scheduler", "read_ahead_kb", "nr_requests", "max_sectors_kb"]
        ),
        st.binary(max_size=40),
    )
)
def test_garbled_settings_are_not_known(texts: dict[str, bytes]) -> None:
    """For any content of a sysfs file a setting is valid, or has a reason."""
    with tempfile.TemporaryDirectory() as folder:
        machine = roots(Path(folder))
        place = disk(machine.sys, "sda", "8:0", "pci0/ata1/host0")
        for name, data in texts.items():
            (place / "queue" / name).write_bytes(data)
        found = device("8:0", machine)
    assert found.read_ahead_bytes is None or 0 <= found.read_ahead_bytes < 2**63


# ----------------------------------------------------------------------------- network file systems


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            mount(
                "nfs4",
                "server:/export/data",
                "rw,vers=4.2,rsize=1048576,proto=tcp,nconnect=8,addr=10.0.0.1",
            ),
            Network(("server",), "/export/data", "4.2", "tcp", 1048576, 8),
        ),
        (
            mount("nfs", "[fe80::1]:/e", "rw,vers=3,rsize=65536,proto=rdma"),
            Network(("[fe80::1]",), "/e", "3", "rdma", 65536, 1),
        ),
        (
            mount("cifs", "//nas/share/x", "rw,vers=3.1.1,rsize=4194304,max_channels=2"),
            Network(("nas",), "share/x", "3.1.1", None, 4194304, 2),
        ),
        (
            mount("ceph", "mon1:6789,mon2:6789:/d", "rw,rsize=4194304"),
            Network(("mon1:6789", "mon2:6789"), "/d", None, None, 4194304, None),
        ),
        (
            mount("ceph", "me@6a2b-11.cephfs=/d", "rw,mon_addr=10.0.0.1:6789/10.0.0.2:6789"),
            Network(("10.0.0.1:6789", "10.0.0.2:6789"), "cephfs:/d", None, None, None, None),
        ),
        (
            mount("wekafs", "w1,w2/default", "rw,readcache"),
            Network(("w1", "w2"), "default", None, None, None, None),
        ),
        (
            mount("beegfs", "beegfs_ondemand", "rw,cfgFile=/etc/beegfs.conf"),
            Network(None, "beegfs_ondemand", None, None, None, None),
        ),
        (mount("gpfs", "gpfs0", "rw,dev=gpfs0"), Network(None, "gpfs0", None, None, None, None)),
        (
            mount("fuse.glusterfs", "10.77.0.1:/ds", "rw,max_read=131072"),
            Network(("10.77.0.1",), "/ds", None, None, 131072, None),
        ),
        (
            mount("fuse.sshfs", "me@host:/data", "rw,user_id=1000"),
            Network(("me@host",), "/data", None, None, None, None),
        ),
        (
            mount("9p", "share", "rw,trans=virtio,version=9p2000.L,msize=512000"),
            Network(None, "share", "9p2000.L", "virtio", 512000, None),
        ),
    ],
    ids=lambda value: value.file_system if isinstance(value, Mount) else "",
)
def test_a_network_mount_says_what_it_is(machine: Roots, found: Mount, expected: Network) -> None:
    """Servers, volume, version and the size of a request, as the options of each file system name
    them; shared, whichever it is."""
    whole = storage(found, machine)
    assert isinstance(whole.network, Network)
    assert expected == replace(whole.network, unknown={})
    assert "shared" == whole.kind


def test_the_readahead_of_a_network_mount_is_that_of_its_bdi(machine: Roots) -> None:
    """NFS and FUSE register theirs under the mount's device number."""
    write(machine.sys, {"class/bdi/0:50/read_ahead_kb": "15360\n"})
    assert 15360 * 1024 == storage(mount("nfs4", "server:/x"), machine).read_ahead_bytes


def test_a_mount_that_is_not_known_stays_unknown(machine: Roots) -> None:
    """Neither a new file system nor a FUSE program is guessed at; zfs says who could name its
    devices."""
    for name in ("newfs", "fuse.something", "fuse", "zfs"):
        found = storage(mount(name), machine)
        assert "unknown" == found.kind, name
    assert "zpool status" in storage(mount("zfs", "tank/data"), machine).unknown["devices"]
    assert storage(mount("newfs"), machine).counts_blocks is None


@given(
    st.sampled_from([*TYPES, "fuse.sshfs", "fuse", "fuse.squashfuse", "newfs"]),
    st.text(max_size=30),
    st.text(max_size=60),
)
def test_any_mount_can_be_described(file_system: str, source: str, options: str) -> None:
    """For any source and options: a description with reasons for unknown values, which can be
    printed and saved."""
    found = Mount(7, "0:50", "/data\udc80", file_system, source, tuple(options.split(",")))
    whole = storage(found, Roots(Path("/nowhere"), Path("/nowhere")))
    text = str(plain(whole)) + str(lines(whole))
    assert text.encode()
    assert whole.kind in ("shared", "memory", "unknown")


# ------------------------------------------------------------------------------------------- Lustre

LLITE = "scratch-ffff9e10c2a4b000"


def lustre_machine(machine: Roots, settings: str) -> Roots:
    """A client of `scratch` with three OSTs and a metadata server, whose settings are where that
    release has them."""
    folder = {"2.10": machine.proc / "fs/lustre", "2.15": machine.sys / "fs/lustre"}[settings]
    version = (
        "lustre: 2.10.8\nkernel: patchless_client\nbuild: 2.10.8\n"
        if settings == "2.10"
        else "2.15.4\n"
    )
    values = {
        "max_read_ahead_mb": "256",
        "max_read_ahead_per_file_mb": "64.00",
        "statahead_max": "32",
        "fast_read": "1",
    }
    write(folder, {"version": version, "jobid_var": "SLURM_JOB_ID\n"})
    write(folder / "llite" / LLITE, {name: f"{value}\n" for name, value in values.items()})
    for number in range(3):
        (folder / "osc" / f"scratch-OST{number:04x}-osc-ffff9e10c2a4b000").mkdir(parents=True)
        (folder / "osc" / f"scratch-OST{number:04x}-osc-MDT0000").mkdir()  # a metadata server's own
    (folder / "mdc" / "scratch-MDT0000-mdc-ffff9e10c2a4b000").mkdir(parents=True)
    return machine


@pytest.mark.parametrize(("release", "version"), [("2.10", "2.10.8"), ("2.15", "2.15.4")])
def test_a_lustre_mount_is_described_from_where_the_release_keeps_it(
    machine: Roots, release: str, version: str
) -> None:
    """Version, targets, readahead, locks and the name that servers know a job by, without root and
    without lfs."""
    found = mount(
        "lustre",
        "10.0.0.1@o2ib,10.0.1.1@o2ib1:10.0.0.2@o2ib:/scratch/project",
        "rw,flock,lazystatfs",
    )
    whole = storage(found, lustre_machine(machine, release))
    lustre = whole.network
    assert isinstance(lustre, Lustre)
    assert (("10.0.0.1@o2ib", "10.0.1.1@o2ib1", "10.0.0.2@o2ib"), "scratch", version) == (
        lustre.servers,
        lustre.file_system,
        lustre.version,
    )
    assert (3, 1, "flock", "SLURM_JOB_ID", 32, True) == (
        lustre.num_osts,
        lustre.num_mdts,
        lustre.locks,
        lustre.jobid,
        lustre.statahead_max,
        lustre.fast_read,
    )
    assert (256 << 20, 64 << 20, 64 << 20) == (
        lustre.read_ahead_bytes,
        lustre.read_ahead_per_file_bytes,
        whole.read_ahead_bytes,
    )
    assert ("shared", False, True) == (whole.kind, whole.answers_nowait, whole.counts_blocks)
    assert "read_ahead_range_bytes" in lustre.unknown
    assert "lustre.lov" in lustre.unknown["layout"]


def test_two_mounts_of_one_lustre_that_differ_are_not_mixed_up(machine: Roots) -> None:
    """Only an ioctl would show which of them the path is on: settings that are equal are known,
    others are not."""
    lustre_machine(machine, "2.15")
    other = machine.sys / "fs/lustre/llite/scratch-ffff9e10c2a4c000"
    write(
        other,
        {
            "max_read_ahead_mb": "512\n",
            "max_read_ahead_per_file_mb": "64\n",
            "statahead_max": "junk\n",
            "fast_read": "1\n",
        },
    )
    lustre = storage(mount("lustre", "mgs@tcp:/scratch"), machine).network
    assert isinstance(lustre, Lustre)
    assert (None, 64 << 20, None, True) == (
        lustre.read_ahead_bytes,
        lustre.read_ahead_per_file_bytes,
        lustre.statahead_max,
        lustre.fast_read,
    )
    assert "differ" in lustre.unknown["read_ahead_bytes"]


def test_a_path_that_is_not_there_is_an_error_with_a_name(tmp_path: Path) -> None:
    """One line that says which path, and no traceback, also for a name that no file can have."""
    for path in (tmp_path / "absent", tmp_path / "a" / "b", Path("a\0b")):
        with pytest.raises(CommandError, match="name an existing file or folder"):
            describe(path)
