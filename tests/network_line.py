"""A throttled link between two network namespaces of one machine: every frame passes through this
process.

Two TAP devices, each in a network namespace of its own. It needs neither `tc` nor the queueing
disciplines netem and tbf, which kernels of virtual machines often lack, and it counts the
transferred bytes.
"""

import ctypes
import fcntl
import os
import queue
import struct
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

DEVICE: Final = "/dev/net/tun"
_TUNSETIFF: Final = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x2, 0x1000
_CLONE_NEWNET: Final = 0x40000000
_MTU: Final = 9000  # as in storage networks; also fewer frames pass through Python
_QUEUE_FRAMES: Final = 200
_LARGEST_FRAME: Final = 1 << 16
_BURST_S: Final = 0.005
"""How much transfer time the link may catch up after it was late itself."""


@dataclass
class Shape:
    """Limits of the link in each direction; may be changed at any time."""

    rate_mbit: float = 0.0
    """Megabits per second; 0: no limit."""
    delay_ms: float = 0.0
    """Delay of each frame; a round trip takes twice as long."""


class _Direction:
    def __init__(self, source: int, target: int, shape: Shape) -> None:
        self._source, self._target, self._shape = source, target, shape
        self._waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self.bytes = self.frames = 0
        for work in (self._receive, self._send):
            threading.Thread(target=work, daemon=True).start()

    def _receive(self) -> None:
        free_at = 0.0
        while True:
            frame = os.read(self._source, _LARGEST_FRAME)
            self.bytes, self.frames = self.bytes + len(frame), self.frames + 1
            now, rate = time.monotonic(), self._shape.rate_mbit
            free_at = max(now - _BURST_S, free_at) + (len(frame) * 8e-6 / rate if rate else 0.0)
            self._waiting.put((max(free_at, now) + self._shape.delay_ms / 1000, frame))
            # the next frame waits in the queue of the device, which drops frames when full, like a
            # switch
            if free_at > now:
                time.sleep(free_at - now)

    def _send(self) -> None:
        while True:
            due, frame = self._waiting.get()
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            # the other end is closed or its queue is full: the frame is lost
            with suppress(OSError):
                os.write(self._target, frame)


class Line:
    """Runs as soon as both ends exist."""

    def __init__(self, first: int, second: int, shape: Shape) -> None:
        self.shape = shape
        self._there, self._back = _Direction(first, second, shape), _Direction(second, first, shape)

    def books(self) -> dict[str, int]:
        """Transferred bytes of frames, including headers."""
        return {
            "bytes_from_first": self._there.bytes,
            "bytes_from_second": self._back.bytes,
            "frames": self._there.frames + self._back.frames,
        }


def enter_new_network() -> None:
    """Move this thread and its future children into a new network namespace with only a loopback
    device."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(
            ctypes.get_errno(), f"no network namespace: {os.strerror(ctypes.get_errno())}"
        )
    _ip("link", "set", "lo", "up")


def end_of_line(address: str) -> int:
    """Create a TAP device with that address (10.0.0.1/24) in the network of this thread; returns
    its file descriptor."""
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", b"line0", _IFF_TAP | _IFF_NO_PI))
    _ip("address", "add", address, "dev", "line0")
    _ip("link", "set", "line0", "mtu", str(_MTU), "txqueuelen", str(_QUEUE_FRAMES), "up")
    return descriptor


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
