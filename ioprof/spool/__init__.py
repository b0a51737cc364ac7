"""From the spool folder that a job leaves to one Trace: capture files, perf files, samples and Kineto's records on one clock."""

from ioprof.spool.reader import read_spool

__all__ = ["read_spool"]
