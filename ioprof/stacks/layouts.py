"""Where an interpreter keeps its threads and frames: byte offsets, fixed within a minor version of
CPython.

3.11 and 3.12 do not say them: they are in the table below, taken from the headers of those versions
(`tests/test_stacks.py` compiles a program against the headers that are installed, and compares).
3.13 and newer have `_Py_DebugOffsets` at the start of `_PyRuntime` (CPython,
Include/internal/pycore_debug_offsets.h), to which fields were added from version to version.
"""

import struct
from dataclasses import astuple, dataclass
from typing import Final

from ioprof.errors import CaptureError

COOKIE: Final = b"xdebugpy"
OFFSETS_BYTES: Final = 1024
"""More than any `_Py_DebugOffsets` has."""


@dataclass(frozen=True)
class FrameLayout:
    """`struct layout` of native/stacks/layout.h but for its first field, the address of
    `PyCode_Type`.
    """

    thread_frame: int
    has_cframe: int
    cframe_frame: int
    frame_previous: int
    frame_code: int
    frame_instruction: int
    frame_owner: int
    first_foreign_owner: int
    thread_native_id: int
    code_filename: int
    code_qualname: int
    code_linetable: int
    code_firstlineno: int
    code_instructions: int
    text_ascii: int
    text_compact: int

    def words(self, code_type: int) -> tuple[int, ...]:
        """The fields of the C structure."""
        return (code_type, *astuple(self))


@dataclass(frozen=True)
class Layout:
    """Where an interpreter keeps its threads, and each of these its frames."""

    interpreters_head: int
    """In `_PyRuntime`."""
    threads_head: int
    """In a PyInterpreterState."""
    thread_next: int
    """In a PyThreadState, as the following."""
    thread_interpreter: int
    lock: int
    """Where the interpreter's lock is; 0: not known."""
    lock_in_runtime: bool
    """It is in `_PyRuntime`; else its address is in a PyInterpreterState."""
    frames: FrameLayout


_FOREIGN_OWNER: Final = (
    3  # FRAME_OWNED_BY_CSTACK, since 3.14 FRAME_OWNED_BY_INTERPRETER: the entry of a call from C
)

_3_11: Final = Layout(
    interpreters_head=40,
    threads_head=16,
    thread_next=8,
    thread_interpreter=16,
    lock=360,
    lock_in_runtime=True,
    frames=FrameLayout(
        thread_frame=56,
        has_cframe=1,
        cframe_frame=8,
        frame_previous=48,
        frame_code=32,
        frame_instruction=56,
        frame_owner=69,
        first_foreign_owner=_FOREIGN_OWNER,
        thread_native_id=160,
        code_filename=112,
        code_qualname=128,
        code_linetable=136,
        code_firstlineno=72,
        code_instructions=184,
        text_ascii=48,
        text_compact=72,
    ),
)
_3_12: Final = Layout(
    interpreters_head=40,
    threads_head=72,
    thread_next=8,
    thread_interpreter=16,
    lock=384,
    lock_in_runtime=False,
    frames=FrameLayout(
        thread_frame=56,
        has_cframe=1,
        cframe_frame=0,
        frame_previous=8,
        frame_code=0,
        frame_instruction=56,
        frame_owner=70,
        first_foreign_owner=_FOREIGN_OWNER,
        thread_native_id=144,
        code_filename=112,
        code_qualname=128,
        code_linetable=136,
        code_firstlineno=68,
        code_instructions=192,
        text_ascii=40,
        text_compact=56,
    ),
)
FIXED: Final = {(3, 11): _3_11, (3, 12): _3_12}
"""Layouts of the versions that do not describe themselves."""

_RUNTIME: Final = ("size", "finalizing", "interpreters_head")
_INTERPRETER: Final = ("size", "id", "next", "threads_head")
_THREAD: Final = (
    "size",
    "prev",
    "next",
    "interp",
    "current_frame",
    "thread_id",
    "native_thread_id",
    "datastack_chunk",
    "status",
)
_FRAME: Final = ("size", "previous", "executable", "instr_ptr", "localsplus", "owner")
_CODE: Final = (
    "size",
    "filename",
    "name",
    "qualname",
    "linetable",
    "firstlineno",
    "argcount",
    "localsplusnames",
    "localspluskinds",
    "co_code_adaptive",
)
_LOCK: Final = ("ceval_gil", "gil_runtime_state", "gil_enabled", "gil_locked", "gil_holder")
_LOCK_PLACE: Final = {(3, 13): 8, (3, 14): 9}
"""Where these fields begin among those of the interpreter."""
_LOCK_FIELDS: Final = (16, 8)
"""Where `locked` and `last_holder` are in a `struct _gil_runtime_state`, in all versions that
native/stacks/lock.c reads."""
_INTERPRETER_WORDS: Final = {(3, 13): 13, (3, 14): 16}
"""Numbers of fields that grew: `threads_main`, `code_object_generation` and `tlbc_generation` are
new in 3.14."""
_FRAME_WORDS: Final = {(3, 13): 6, (3, 14): 8}
"""`stackpointer` and `tlbc_index` are new in 3.14."""
_CODE_WORDS: Final = {(3, 13): 10, (3, 14): 11}
"""`co_tlbc` is new in 3.14."""
NEWEST: Final = max(_INTERPRETER_WORDS)


def version_name(version: int) -> str:
    """`3.11.7` of a PY_VERSION_HEX."""
    return f"{version >> 24}.{version >> 16 & 255}.{version >> 8 & 255}"


def layout_of(version: int, runtime: bytes) -> Layout:
    """The layout of an interpreter by its PY_VERSION_HEX and the first bytes of its `_PyRuntime`;
    else `CaptureError`.
    """
    minor = version >> 24, version >> 16 & 255
    if minor in FIXED:
        return FIXED[minor]
    name = version_name(version)
    if minor < min(FIXED) or minor > NEWEST or version >> 4 & 15 not in (12, 15):
        supported = f"3.11 to {NEWEST[0]}.{NEWEST[1]}"
        raise CaptureError(
            f"Python {name} keeps its frames in a way that this version of ioprof does not know; it"
            f" reads {supported}"
        )
    words = struct.unpack_from("<126Q", runtime, 16)
    if runtime[:8] != COOKIE or struct.unpack_from("<Q", runtime, 8)[0] >> 16 != version >> 16:
        raise CaptureError(
            f"Python {name}: its _PyRuntime does not begin with a description of its structures"
        )
    if words[0]:
        raise CaptureError(
            f"Python {name} is a free-threaded build, whose frames this version of ioprof does not"
            " read"
        )
    return _described(minor, words[1:])


def _described(minor: tuple[int, int], words: tuple[int, ...]) -> Layout:
    place = 0

    def section(names: tuple[str, ...], length: int) -> dict[str, int]:
        nonlocal place
        found = dict(zip(names, words[place:], strict=False))
        place += length
        return found

    runtime = section(_RUNTIME, len(_RUNTIME))
    lock = dict(zip(_LOCK, words[place + _LOCK_PLACE[minor] :], strict=False))
    has_known_lock = (
        lock["gil_locked"] - lock["gil_runtime_state"],
        lock["gil_holder"] - lock["gil_runtime_state"],
    ) == _LOCK_FIELDS
    interpreter = section(_INTERPRETER, _INTERPRETER_WORDS[minor])
    thread = section(_THREAD, len(_THREAD))
    frame = section(_FRAME, _FRAME_WORDS[minor])
    code = section(_CODE, _CODE_WORDS[minor])
    objects = section(("size", "ob_type"), 2)
    if (
        objects != {"size": 16, "ob_type": 8}
        or not 0 < frame["size"] <= 256
        or not 0 < thread["native_thread_id"] < thread["size"]
    ):
        what = (
            f"Python {minor[0]}.{minor[1]} describes its structures in a way that this version of"
            " ioprof does not know"
        )
        raise CaptureError(what)
    return Layout(
        interpreters_head=runtime["interpreters_head"],
        threads_head=interpreter["threads_head"],
        thread_next=thread["next"],
        thread_interpreter=thread["interp"],
        lock=lock["ceval_gil"] if has_known_lock else 0,
        lock_in_runtime=False,
        frames=FrameLayout(
            thread_frame=thread["current_frame"],
            has_cframe=0,
            cframe_frame=0,
            frame_previous=frame["previous"],
            frame_code=frame["executable"],
            frame_instruction=frame["instr_ptr"],
            frame_owner=frame["owner"],
            first_foreign_owner=_FOREIGN_OWNER,
            thread_native_id=thread["native_thread_id"],
            code_filename=code["filename"],
            code_qualname=code["qualname"],
            code_linetable=code["linetable"],
            code_firstlineno=code["firstlineno"],
            code_instructions=code["co_code_adaptive"],
            text_ascii=40,
            text_compact=56,
        ),
    )
