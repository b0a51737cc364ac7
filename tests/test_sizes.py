"""Parsing of sizes in bytes."""

import pytest

from ioprof.errors import CommandError
from ioprof.jobs.byte_sizes import parse_bytes
from ioprof.storage.limits import LEAST_BYTES, MOST_BYTES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512M", 512 << 20),
        ("2G", 2 << 30),
        ("1.5GiB", 3 << 29),
        ("64 mb", 64 << 20),
        ("1T", 1 << 40),
        ("5000000", 5_000_000),
    ],
)
def test_sizes_are_powers_of_1024(text, expected):
    """The units of the scheduler's --mem and systemd's MemoryMax."""
    assert expected == parse_bytes("--memory-limit", text, LEAST_BYTES, MOST_BYTES)


@pytest.mark.parametrize(
    "text", ["", "2X", "-1G", "G", "1e9", "0", "1K", "99999999T", "2G2G", "٣G"]
)
def test_a_bad_size_is_one_clear_line(text):
    """The message contains the given value and a valid one."""
    with pytest.raises(CommandError) as found:
        parse_bytes("--memory-limit", text, LEAST_BYTES, MOST_BYTES)
    assert (True, True) == (repr(text) in str(found.value), "2G" in str(found.value))
