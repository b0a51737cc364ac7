"""Samplers: what the host and the processes of a job did, at a stated period; they run in a thread of the launcher, not in the job.

    with Sampler(spool, period_s=1.0) as sampler:
        ...  # start the job, wait for it
    facts = sampler.facts()

The series, their units and how to read them are in `ioprof.series`, the file that they are written to in `samplers.file`.
"""

from ioprof.record.samplers.sampler import Sampler

__all__ = ["Sampler"]
