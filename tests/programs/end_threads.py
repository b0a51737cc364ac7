"""Prints the number of a thread that waits; after a line of input it ends, and other threads begin
and end again and again."""

import sys
import threading
import time

end = threading.Event()


def early() -> None:
    """Wait."""
    end.wait()  # wait


def later() -> None:
    """Do something for a moment."""
    time.sleep(1e-3)


first = threading.Thread(target=early)
first.start()
print(first.native_id, flush=True)
sys.stdin.readline()
end.set()
first.join()
print("ended", flush=True)
while True:
    thread = threading.Thread(target=later)
    thread.start()
    thread.join()
