"""A child of multiprocessing that records and ends as a DataLoader worker does. Arguments: SPOOL
native|python fork|spawn."""

import multiprocessing
import sys
from pathlib import Path

from ioprof.instrument import recorder
from ioprof.instrument.span import span

if sys.argv[2] == "python":
    recorder._native = None


def work(spool: Path, worker: int) -> None:
    """What a worker does; nothing stops its recording but the end of the process."""
    recorder.start(spool, rank=0, role="worker", worker=worker)
    with span("fetch"):
        pass


if __name__ == "__main__":
    start_method = multiprocessing.get_context(sys.argv[3])
    folder = Path(sys.argv[1])
    recorder.start(folder, rank=0, role="rank")
    workers = [start_method.Process(target=work, args=(folder, worker)) for worker in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in workers))
