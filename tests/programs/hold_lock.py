"""Pauses for 0.1 ms again and again, beside a thread that computes in Python, or sleeps.

hold_lock.py hold|sleep
"""

import sys
import threading
import time


def square(value):
    """A call, so that the stack changes."""
    return value * value


def compute():
    """Never give the lock away of its own accord."""
    while True:
        square(3)


def main():
    """Need the lock after each pause."""
    while True:
        time.sleep(1e-4)  # pause


threading.Thread(
    target=compute if sys.argv[1] == "hold" else time.sleep,
    args=() if sys.argv[1] == "hold" else (1000,),
    daemon=True,
).start()
print("ready", flush=True)  # ready
main()
