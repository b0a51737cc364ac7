"""A line between two networks of one machine, as slow as is asked for: every frame passes through this process.

Two TAP devices, each in a network namespace of its own. It needs neither `tc` nor the queueing disciplines netem and tbf, which
kernels of virtual machines often lack, and its books say what has passed.
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
_MTU: Final = 9000  # as storage networks have it; and fewer frames pass through Python
_QUEUE_FRAMES: Final = 200
_LARGEST_FRAME: Final = 1 << 16
_BURST_S: Final = 0.005
"""How much of its rate the line may make up for after it was late itself."""


@dataclass
class Shape:
    """What the line does to frames, each way; may be changed at any time."""

    rate_mbit: float = 0.0
    """Million bits per second; 0: no limit."""
    delay_ms: float = 0.0
    """Of each frame: a round trip takes twice as long."""


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
            if free_at > now:  # the next one waits in the device's queue, which drops what is too much, as a switch does
                time.sleep(free_at - now)

    def _send(self) -> None:
        while True:
            due, frame = self._waiting.get()
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            with suppress(OSError):  # the other end is gone, or has no room: the frame is lost
                os.write(self._target, frame)


class Line:
    """Under way from the moment on that both ends are there."""

    def __init__(self, first: int, second: int, shape: Shape) -> None:
        self.shape = shape
        self._there, self._back = _Direction(first, second, shape), _Direction(second, first, shape)

    def books(self) -> dict[str, int]:
        """What has passed: bytes of frames, their headers included."""
        return {
            "bytes_from_first": self._there.bytes,
            "bytes_from_second": self._back.bytes,
            "frames": self._there.frames + self._back.frames,
        }


def enter_new_network() -> None:
    """This thread, and the programs that it starts from now on, are in a network of their own, with a loopback device only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"no network namespace: {os.strerror(ctypes.get_errno())}")
    _ip("link", "set", "lo", "up")


def end_of_line(address: str) -> int:
    """A device with that address (10.0.0.1/24) in this thread's network; the descriptor is the other side of its plug."""
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", b"line0", _IFF_TAP | _IFF_NO_PI))
    _ip("address", "add", address, "dev", "line0")
    _ip("link", "set", "line0", "mtu", str(_MTU), "txqueuelen", str(_QUEUE_FRAMES), "up")
    return descriptor


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
