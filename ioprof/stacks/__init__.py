"""Samples of the Python stacks of a job's processes, read from outside by the process that records
them.

    with StackSampler(spool) as sampler:
        ...  # start the job, wait for it
    facts = sampler.facts()

The job is not changed, stopped or signalled: its memory is copied by `process_vm_readv`
(`native/stacks/`), and what changed meanwhile is dropped.

layouts.py        where an interpreter of each version keeps its threads and frames
elf.py            addresses of the symbols of a program or library
interpreters.py   the interpreter of a process, and the states of its threads
library.py        the C library that copies memory
sampler.py        `StackSampler`: which processes and threads, how often, at what cost
"""

from ioprof.stacks.sampler import StackSampler

__all__ = ["StackSampler"]
