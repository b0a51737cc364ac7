"""A job that gets every value of an LMDB environment, without readahead. Argument: PATH. Prints its
major faults meanwhile."""

import resource
import sys
import tempfile

import lmdb


def read(path: str) -> str:
    environment = lmdb.open(path, readonly=True, lock=False, readahead=False)
    with environment.begin(buffers=False) as transaction:
        numbers = range(transaction.stat()["entries"])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        values = [transaction.get(b"%08d" % number) for number in numbers]
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
    return f"{faults} {sum(map(len, values))}"


# so that the code of LMDB, too, is in memory when faults are counted
with tempfile.TemporaryDirectory() as folder:
    with lmdb.open(folder) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"%08d" % 0, bytes(5000))
    read(folder)
print(read(sys.argv[1]))
