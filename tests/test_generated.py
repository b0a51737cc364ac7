"""What is generated from Python descriptions is up to date; and the rules of the C sources that a
parser can check."""

import re
import struct
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import WARNINGS, compiler
from repository import NATIVE

from ioprof import file_systems
from ioprof.format import layout, wire_format
from ioprof.instrument import ring
from ioprof.native import generate

STRUCTURES = {
    "FILE_HEADER": (wire_format.FILE_HEADER, layout.FILE_HEADER_DTYPE),
    "CHUNK_HEADER": (wire_format.CHUNK_HEADER, layout.CHUNK_HEADER_DTYPE),
    "RECORD": (wire_format.RECORD, layout.RECORD_DTYPE),
}
C_LINES = 500


def test_generated_files_are_up_to_date() -> None:
    """Run `python -m ioprof.native.generate` after a change of wire_format.py, schema.py or
    file_systems.py."""
    outdated = [
        path.name for path, text in generate.generated().items() if path.read_text() != text
    ]
    assert [] == outdated


# --------------------------------------------------------------------------------- the capture file


@pytest.mark.parametrize("name", STRUCTURES)
def test_numpy_struct_and_offsets_agree(name: str) -> None:
    """The NumPy type, the format of the struct module and `offset_of` place every field at the same
    offset, without padding."""
    fields, dtype = STRUCTURES[name]
    by_numpy: dict[str, Any] = dict(dtype.fields or {})
    assert list(by_numpy) == [field for field, _, _ in fields]
    assert {field: place[1] for field, place in by_numpy.items()} == {
        field: wire_format.offset_of(fields, field) for field in by_numpy
    }
    assert {dtype.itemsize} == {
        wire_format.size_of(fields),
        struct.calcsize(wire_format.struct_format(fields)),
    }


def test_every_field_is_aligned() -> None:
    """The C structures have no packing attribute: a field that is not aligned would be moved by the
    compiler."""
    for fields, _ in STRUCTURES.values():
        for name, type_, _ in fields:
            alignment = 1 if "(" in type_ else wire_format.type_size(type_)
            assert 0 == wire_format.offset_of(fields, name) % alignment, name


def test_the_sizes_are_those_of_version_2() -> None:
    """Files that were recorded before must stay readable: a change of a size is a new
    FORMAT_VERSION."""
    sizes = {name: dtype.itemsize for name, (_, dtype) in STRUCTURES.items()}
    assert (2, {"FILE_HEADER": 224, "CHUNK_HEADER": 64, "RECORD": 56}) == (
        wire_format.FORMAT_VERSION,
        sizes,
    )
    assert (4096, 65536, 1169) == (
        wire_format.HEADER_BYTES,
        wire_format.CHUNK_BYTES,
        wire_format.SLOTS,
    )


def test_the_python_writer_packs_what_numpy_reads() -> None:
    """A record with a different number in every field comes back field by field."""
    values = tuple(range(1, len(wire_format.RECORD) + 1))
    (row,) = np.frombuffer(ring.RECORD.pack(*values), layout.RECORD_DTYPE)
    assert values == tuple(row.tolist())


# ------------------------------------------------------------------------------------- file systems


def test_types_of_one_magic_number_have_one_accounting() -> None:
    """statfs gives the capture library the magic number alone, so that it cannot tell such types
    apart."""
    found: dict[int, set[str]] = {}
    for known in (*file_systems.TYPES.values(), file_systems.type_of("fuse")):
        if known is not None and known.magic is not None:
            found.setdefault(known.magic, set()).add(known.accounting)
    assert {1} == {len(words) for words in found.values()}


def test_the_c_table_has_every_type_of_known_accounting() -> None:
    """None is left out, and RWF_NOWAIT is tried wherever a type of that magic number is known to
    answer it."""
    text = generate.FILE_SYSTEM_TABLE.read_text()
    rows = re.findall(
        r"FILE_SYSTEM\((0x[0-9a-f]+), ACCOUNTING_(\w+), (true|false)\) /\* (.*) \*/", text
    )
    listed = {
        name: (accounting.lower(), nowait)
        for _, accounting, nowait, names in rows
        for name in names.split(", ")
    }
    known = {
        name: known for name, known in file_systems.TYPES.items() if known.accounting != "unknown"
    }
    assert {name: each.accounting for name, each in known.items()} == {
        name: listed[name][0] for name in known
    }
    assert {"fuse"} == listed.keys() - known.keys()
    assert [] == [
        name for name, each in known.items() if each.answers_nowait and listed[name][1] == "false"
    ]


# ---------------------------------------------------------------------------------------- C sources


def c_files() -> list[Path]:
    """Sources and headers of the C libraries."""
    return sorted(path for path in NATIVE.rglob("*") if path.suffix in {".c", ".h"})


def included(path: Path) -> list[Path]:
    """The project's own headers that a file includes."""
    names = re.findall(r'^#include "([\w.]+)"', path.read_text(), re.MULTILINE)
    places = (path.parent, NATIVE / "ring")
    return [next(place / name for place in places if (place / name).is_file()) for name in names]


def test_no_include_cycle() -> None:
    """A header never includes itself by way of others."""
    files = c_files()
    waiting = {path: set(included(path)) for path in files}
    while free := {path for path, headers in waiting.items() if not headers}:
        waiting = {path: headers - free for path, headers in waiting.items() if path not in free}
    assert [] == [path.name for path in waiting]


def test_c_files_stay_short() -> None:
    """Beyond 500 lines a file has more than one subject."""
    assert {} == {
        path.name: length
        for path in c_files()
        if (length := len(path.read_text().splitlines())) > C_LINES
    }


@pytest.mark.job(every=4)
def test_every_header_can_be_included_first() -> None:
    """A header includes what it uses; hooks.h is a list for macros of real.h."""
    headers = [path for path in c_files() if path.suffix == ".h" and path.name != "hooks.h"]
    include = [f"-I{NATIVE / 'ring'}", f"-I{sysconfig.get_path('include')}"]
    words = [compiler(), "-std=gnu11", *WARNINGS, "-fsyntax-only", *include, "-x", "c", *headers]
    checked = subprocess.run(words, capture_output=True, text=True)
    assert (0, "") == (checked.returncode, checked.stderr)
