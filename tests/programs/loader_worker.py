"""A child of multiprocessing that records and ends as a DataLoader worker does. Arguments: SPOOL native|python fork|spawn."""

import multiprocessing
import sys
from pathlib import Path

from ioprof.instrument import recorder
from ioprof.instrument.span import span


def work(spool: Path, native: bool, worker: int) -> None:
    """What a worker does; nothing stops its recording but the end of the process."""
    recorder.start(spool, rank=0, role="worker", worker=worker, native=native)
    with span("fetch"):
        pass


if __name__ == "__main__":
    start_method = multiprocessing.get_context(sys.argv[3])
    folder, is_native = Path(sys.argv[1]), sys.argv[2] == "native"
    recorder.start(folder, rank=0, role="rank", native=is_native)
    workers = [start_method.Process(target=work, args=(folder, is_native, worker)) for worker in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in workers))
