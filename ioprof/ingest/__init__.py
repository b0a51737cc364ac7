"""Converts the spool folder of a job to one Trace: capture files, perf files, samples and Kineto
traces, on one clock.
"""

from ioprof.ingest.page_faults.mapped_bytes import credit_mapped_bytes
from ioprof.ingest.reader import read_spool
from ioprof.ingest.storing import store_spool

__all__ = ["credit_mapped_bytes", "read_spool", "store_spool"]
