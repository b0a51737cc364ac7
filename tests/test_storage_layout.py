"""The attribute `lustre.lov`: what was packed is read back, in either byte order, and nothing that
it may hold stops the reader."""

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ioprof.storage.lustre_layout import ALL_OSTS, Component, Layout, layout_of
from ioprof.storage.wording import layout_text

V1, V3, COMPOSITE = 0x0BD10BD0, 0x0BD30BD0, 0x0BD60BD0
RAID0, MDT, OVERSTRIPED, RELEASED = 0x1, 0x100, 0x200, 0x80000000
EOF = 2**64 - 1


def plain(
    order: str,
    osts: list[int],
    *,
    size: int = 1 << 20,
    pattern: int = RAID0,
    pool: str = "",
    count: int | None = None,
) -> bytes:
    """lov_user_md_v1, or v3 where there is a pool, as lustre_user.h packs it."""
    stripes = len(osts) if count is None else count
    head = struct.pack(f"{order}IIQQIHH", V3 if pool else V1, pattern, 11, 12, size, stripes, 0)
    objects = b"".join(struct.pack(f"{order}QQII", 21, 22, 0, index) for index in osts)
    return head + (pool.encode().ljust(16, b"\0") if pool else b"") + objects


@dataclass(frozen=True)
class Entry:
    """A component: its extent, its flags, its own attribute."""

    start: int
    end: int
    flags: int
    blob: bytes
    mirror: int = 0


def composite(order: str, entries: list[Entry], mirrors: int = 1) -> bytes:
    """lov_comp_md_v1: a header, a table of 48 bytes for each entry, and the entries' own
    attributes."""
    offset = 32 + 48 * len(entries)
    size = offset + sum(len(entry.blob) for entry in entries)
    head = struct.pack(
        f"{order}IIIHHHHHHQ", COMPOSITE, size, 1, 0, len(entries), mirrors - 1, 0, 0, 0, 0
    )
    table = b""
    for number, entry in enumerate(entries, 1):
        identity = entry.mirror << 16 | number
        fields = (identity, entry.flags, entry.start, entry.end, offset, len(entry.blob), 0, 0, 0)
        table += struct.pack(f"{order}IIQQIIIQI", *fields)
        offset += len(entry.blob)
    return head + table + b"".join(entry.blob for entry in entries)


orders = st.sampled_from("<>")
indices = st.lists(st.integers(0, 2**32 - 1), max_size=8)


@given(orders, indices, st.integers(1, 2**32 - 1), st.sampled_from(["", "flash", "a" * 15]))
def test_a_plain_layout_is_read_back(order: str, osts: list[int], size: int, pool: str) -> None:
    """Round trip through the kernel's structure, packed here from its definition; the byte order is
    detected."""
    found = layout_of(plain(order, osts, size=size, pool=pool))
    expected = Component(0, None, ("raid0",), len(osts), size, pool or None, tuple(osts))
    assert Layout((expected,)) == found


@given(orders, st.lists(indices, min_size=1, max_size=6), st.integers(1, 1000))
def test_a_composite_layout_is_read_back(order: str, parts: list[list[int]], step: int) -> None:
    """Every component at its extent, the last to the end of the file, those that have been written
    to and those that have not."""
    ends = [step * (place + 1) for place in range(len(parts) - 1)] + [EOF]
    entries = [
        Entry(step * place, end, 0x10 if osts else 0, plain(order, osts))
        for place, (osts, end) in enumerate(zip(parts, ends, strict=True))
    ]
    found = layout_of(composite(order, entries))
    assert [(entry.start, None if entry.end == EOF else entry.end) for entry in entries] == [
        (part.start_bytes, part.end_bytes) for part in found.components
    ]
    assert [tuple(osts) for osts in parts] == [part.osts for part in found.components]
    assert [bool(osts) for osts in parts] == [part.is_instantiated for part in found.components]


def test_a_small_file_on_the_metadata_server() -> None:
    """Data-on-MDT: the first 64 KiB on the MDT, the rest striped over four targets, not written
    yet."""
    found = layout_of(
        composite(
            "<",
            [
                Entry(0, 1 << 16, 0x10, plain("<", [], size=1 << 16, pattern=MDT)),
                Entry(1 << 16, EOF, 0, plain("<", [], size=4 << 20, count=4)),
            ],
        )
    )
    first, second = found.components
    assert (("mdt",), 0, 1 << 16) == (first.patterns, first.stripe_count, first.end_bytes)
    assert (4, (), False) == (second.stripe_count, second.osts, second.is_instantiated)
    assert 4 == found.stripe_count
    assert (
        "0 to 64 KiB: on the MDT; from 64 KiB: 4 stripes of 4 MiB (not written yet)"
        == layout_text(found)
    )


def test_mirrors_pools_and_what_else_there_is() -> None:
    """File-level redundancy, a stale mirror, overstriping, a file on tape, all targets, an
    extension that holds no data."""
    blob = plain("<", [3, 7], pool="flash", pattern=RAID0 | OVERSTRIPED)
    entries = [
        Entry(0, EOF, 0x10, blob, 1),
        Entry(0, EOF, 0x11, plain("<", [5]), 2),
        Entry(9, EOF, 0x40, plain("<", []), 2),
    ]
    found = layout_of(composite("<", entries, mirrors=2))
    assert (2, [1, 2], [False, True]) == (
        found.num_mirrors,
        [part.mirror for part in found.components],
        [part.is_stale for part in found.components],
    )
    assert (
        "2 mirrors: 2 stripes of 1 MiB on OSTs 3 7 (overstriping, pool flash); 1 stripe of 1 MiB on"
        " OST 5 (stale)" == layout_text(found)
    )
    assert ("raid0", "released") == layout_of(
        plain("<", [], count=1, pattern=RAID0 | RELEASED)
    ).components[0].patterns
    assert ALL_OSTS == layout_of(plain("<", [], count=0xFFFF)).stripe_count
    assert "all OSTs of 1 MiB" == layout_text(layout_of(plain("<", [], count=0xFFFF)))
    assert "the default number of stripes" == layout_text(layout_of(plain("<", [], size=0)))


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("cut", b""),
        ("no layout", b"\0" * 64),
        ("no layout", struct.pack("<I", 0x0BD70BD0 ^ 0xFF) + b"\0" * 60),
        ("foreign", struct.pack("<I", 0x0BD70BD0) + b"\0" * 60),
        ("cut", plain("<", [1, 2])[:-1]),
        ("cut", plain("<", [], pool="flash")[:40]),
        ("cut", composite("<", [Entry(0, EOF, 0x10, plain("<", [1]))])[:60]),
        ("no component", composite("<", [])),
        ("entry 0 is", composite("<", [Entry(5, 5, 0x10, plain("<", [1]))])),
        ("no layout", composite("<", [Entry(0, EOF, 0x10, composite("<", []) + b"\0" * 32)])),
    ],
)
def test_what_is_no_layout_is_said(what: str, data: bytes) -> None:
    """A short attribute, a foreign one, a table that points beyond the end, a layout in a layout in
    a layout."""
    with pytest.raises(ValueError, match=what):
        layout_of(data)


@given(orders, st.lists(indices, min_size=1, max_size=4), st.data())
def test_a_garbled_attribute_is_a_layout_or_a_reason(
    order: str, parts: list[list[int]], data: st.DataObject
) -> None:
    """Cut anywhere, with any bytes exchanged: a value error or a layout whose words can be printed,
    and never anything else."""
    whole = composite(
        order, [Entry(place, EOF, 0x10, plain(order, osts)) for place, osts in enumerate(parts)]
    )
    garbled = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for place in (
        data.draw(st.lists(st.integers(0, max(len(garbled) - 1, 0)), max_size=6)) if garbled else []
    ):
        garbled[place] = data.draw(st.integers(0, 255))
    try:
        found = layout_of(bytes(garbled))
    except ValueError as error:
        said, num_osts = str(error), 0
    else:
        said, num_osts = layout_text(found), max(len(part.osts) for part in found.components)
    assert said
    assert num_osts <= len(whole) // 24
