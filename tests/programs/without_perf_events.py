"""Says why faults cannot be recorded where perf_event_open is forbidden as containers forbid it: by
seccomp."""

import ctypes
import errno
import platform
import struct

from ioprof.instrument import faults, perf_events

LOAD_NUMBER = (0x20, 0, 0, 0)
ALLOW = (0x06, 0, 0, 0x7FFF0000)
REFUSE = (0x06, 0, 0, 0x00050000 | errno.EPERM)

if __name__ == "__main__":
    is_perf_event_open = (0x15, 0, 1, perf_events.NUMBERS[platform.machine()])
    program = [LOAD_NUMBER, is_perf_event_open, REFUSE, ALLOW]
    instructions = ctypes.create_string_buffer(
        b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    )
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    assert libc.prctl(22, 2, filter_, 0, 0) == 0, ctypes.get_errno()
    print(faults.refusal())
