"""Peers: jobs whose samples come from another program, at a limited rate."""

from faults.case import Case

CASES = tuple(
    Case(
        name=name,
        program="train_from_peer.py",
        arguments=tuple(arguments),
        bound_by="storage",
        says=("storage",),
        advises="Receive",
        like="a pipe at 5 MB/s, in the training process" if arguments[0] == "fifo" else "",
    )
    for name, *arguments in (
        ("a pipe at 5 MB/s, in the training process", "pipe", 5_000_000, 48, 0),
        ("a socket at 2.5 MB/s, in a worker", "socket", 2_500_000, 48, 1),
        ("a FIFO at 5 MB/s, in the training process", "fifo", 5_000_000, 48, 0),
    )
)
