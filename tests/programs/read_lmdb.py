"""A job that gets every value of an LMDB environment, without readahead. Argument: PATH. Prints its major faults meanwhile."""

import resource
import sys

import lmdb

environment = lmdb.open(sys.argv[1], readonly=True, lock=False, readahead=False)
with environment.begin(buffers=False) as transaction:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    values = [transaction.get(b"%08d" % number) for number in range(transaction.stat()["entries"])]
    print(resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before, sum(len(value) for value in values))
