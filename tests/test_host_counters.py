"""Counters of the host that are kept from one sample to the next."""

from pathlib import Path

from ioprof.instrument.samplers.host import HostCounters


def test_a_disk_that_was_idle_before_is_read_again(tmp_path: Path) -> None:
    """What was in a line is kept while the line stays the same, and no longer."""
    host, stats = HostCounters(str(tmp_path), str(tmp_path / "sys")), tmp_path / "diskstats"
    for sectors in (16, 16, 24):
        stats.write_text(
            f"253 0 dm-0 4 0 {sectors} 3 2 0 8 1 1 5 9\n254 0 dm-1 4 0 8 3 2 0 8 1 1 5 9\n"
        )
        found = host.disks()
        assert (sectors * 512, 8 * 512) == (
            found["disk.dm-0.read_bytes"],
            found["disk.dm-1.read_bytes"],
        )
    stats.write_text("254 0 dm-1 4 0 8 3 2 0 8 1 1 5 9\n")
    assert {"dm-1"} == {name.split(".")[1] for name in host.disks()}
