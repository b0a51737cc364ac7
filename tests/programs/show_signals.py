"""Prints each signal that it receives by name until half a second after the last, then ends with
7."""

import signal
import sys
import time

received = []
for number in signal.valid_signals() - {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGTSTP,
}:
    signal.signal(number, lambda number, _: received.append(number))
print("ready", flush=True)
first_s = time.monotonic() + float(sys.argv[1])
while not received and time.monotonic() < first_s:
    time.sleep(0.01)
num = 0
while num < len(received):
    num = len(received)
    time.sleep(0.5)
print(*sorted(received), flush=True)
sys.exit(7)
