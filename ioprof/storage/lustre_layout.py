"""The stripes of a file on Lustre, from its extended attribute `lustre.lov`, without `lfs` and
without root.

The attribute is lov_user_md_v1, lov_user_md_v3 or lov_comp_md_v1 of
include/uapi/linux/lustre/lustre_user.h, packed, in the byte order of the reading host; its first
word identifies both. A mirrored, progressive or Data-on-MDT file is composite: a table of extents,
each with its own layout. All offsets and lengths are checked against the attribute's length.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final

ALL_OSTS: Final = -1
"""A stripe count that means all object storage targets that exist when the component is
instantiated."""

_V1, _V3, _SPECIFIC, _COMPOSITE, _FOREIGN, _EXTENSION = (
    0x0BD10BD0,
    0x0BD30BD0,
    0x0BD50BD0,
    0x0BD60BD0,
    0x0BD70BD0,
    0x0BD80BD0,
)
_MAGICS: Final = (_V1, _V3, _SPECIFIC, _COMPOSITE, _FOREIGN, _EXTENSION)
_EOF: Final = (1 << 64) - 1
_PATTERNS: Final = {
    0x1: "raid0",
    0x100: "mdt",
    0x200: "overstriping",
    0x400: "foreign",
    0x800: "compress",
    0x80000000: "released",
}
_STALE, _INSTANTIATED, _IS_EXTENSION = 0x1, 0x10, 0x40
# Formats of the module struct; x is an unused byte.
_HEADER, _POOL_BYTES, _OBJECT = "2I16xI2H", 16, "20xI"
_COMPOSITE_HEADER, _ENTRY = "3I3H14x", "2I2Q2I16x"


@dataclass(frozen=True)
class Component:
    """A part of a file with its own striping; the whole file, where it has only one."""

    start_bytes: int
    end_bytes: int | None
    """None: to the end of the file, also when it grows."""
    patterns: tuple[str, ...]
    """`raid0`, or `mdt` for data on the metadata server; with flags: `overstriping`, `compress`,
    `released` (on tape only)."""
    stripe_count: int
    """Number of targets; 0: the file system's default, or none (`mdt`); or `ALL_OSTS`."""
    stripe_size_bytes: int
    """Bytes on one target before the next; 0: the file system's default."""
    pool: str | None
    """Its OST pool."""
    osts: tuple[int, ...]
    """Indices of its targets, stripe by stripe; empty if none are assigned."""
    mirror: int = 0
    is_instantiated: bool = True
    """Whether it has been written to."""
    is_stale: bool = False
    """Whether it is a mirror that is not synchronised."""


@dataclass(frozen=True)
class Layout:
    """All components of a file, in the order of the attribute: by mirror, then by offset."""

    components: tuple[Component, ...]
    num_mirrors: int = 1

    @property
    def stripe_count(self) -> int:
        """The largest stripe count of any component; `ALL_OSTS` is the largest."""
        counts = [component.stripe_count for component in self.components]
        return ALL_OSTS if ALL_OSTS in counts else max(counts)


def layout_of(data: bytes) -> Layout:
    """Parse the attribute; raises ValueError for invalid bytes."""
    for order in "<>":
        (magic,) = _unpack("I", data, 0, order)
        if magic in _MAGICS:
            break
    else:
        raise ValueError(f"it begins with {data[:4].hex()}, which is no layout")
    if magic in (_V1, _V3, _SPECIFIC):
        return Layout((_parse_component(data, order, 0, None),))
    if magic == _FOREIGN:
        raise ValueError("its data is not in Lustre (a foreign layout)")
    return _parse_composite(data, order)


def _parse_composite(data: bytes, order: str) -> Layout:
    _, _, _, _, num_entries, more_mirrors = _unpack(_COMPOSITE_HEADER, data, 0, order)
    components = []
    for place in range(num_entries):
        number, flags, start, end, offset, size = _unpack(
            _ENTRY, data, _size(_COMPOSITE_HEADER) + place * _size(_ENTRY), order
        )
        # space into which the neighbouring component can grow; it holds no data
        if flags & _IS_EXTENSION:
            continue
        if offset + size > len(data) or start >= end:
            raise ValueError(
                f"entry {place} is from {start} to {end}, at {offset} of {len(data)} bytes"
            )
        part = _parse_component(
            data[offset : offset + size], order, start, None if end == _EOF else end
        )
        is_instantiated, is_stale = bool(flags & _INSTANTIATED), bool(flags & _STALE)
        components.append(
            replace(
                part,
                mirror=number >> 16 & 0x7FFF,
                is_instantiated=is_instantiated,
                is_stale=is_stale,
            )
        )
    if not components:
        raise ValueError("it is composite, and has no component")
    return Layout(tuple(components), more_mirrors + 1)


def _parse_component(data: bytes, order: str, start: int, end: int | None) -> Component:
    magic, pattern, stripe_size, stripe_count, _ = _unpack(_HEADER, data, 0, order)
    if magic not in (_V1, _V3, _SPECIFIC):
        raise ValueError(f"a component begins with {magic:#010x}, which is no layout")
    pool = b"" if magic == _V1 else data[_size(_HEADER) :][:_POOL_BYTES]
    if magic != _V1 and len(pool) < _POOL_BYTES:
        raise ValueError(f"it is cut: {len(data)} bytes")
    objects = _size(_HEADER) + len(pool)
    patterns = tuple(name for bit, name in _PATTERNS.items() if pattern & bit)
    unnamed = pattern & ~sum(_PATTERNS)
    return Component(
        start_bytes=start,
        end_bytes=end,
        patterns=patterns if not unnamed else (*patterns, f"{unnamed:#x}"),
        stripe_count=ALL_OSTS if stripe_count == 0xFFFF else stripe_count,
        stripe_size_bytes=stripe_size,
        pool=pool.split(b"\0")[0].decode("utf-8", "backslashreplace") or None,
        osts=_osts(data[objects:], order, stripe_count),
    )


def _osts(data: bytes, order: str, stripe_count: int) -> tuple[int, ...]:
    """Empty where the attribute ends with the header: the default layout of a folder, or a file
    without data.
    """
    if not data or not stripe_count or stripe_count == 0xFFFF:
        return ()
    if len(data) < stripe_count * _size(_OBJECT):
        raise ValueError(f"it is cut: {len(data)} bytes for {stripe_count} objects")
    return tuple(
        _unpack(_OBJECT, data, place * _size(_OBJECT), order)[0] for place in range(stripe_count)
    )


def _size(form: str) -> int:
    return struct.calcsize(f"<{form}")


def _unpack(form: str, data: bytes, offset: int, order: str) -> tuple[int, ...]:
    if offset + _size(form) > len(data):
        raise ValueError(
            f"it is cut: {len(data)} bytes where there should be {offset + _size(form)} or more"
        )
    return struct.unpack_from(order + form, data, offset)
