"""Samplers of counters of the host and the processes of a job, at a fixed period, in a thread of
the launcher.

    with Sampler(spool, period_s=1.0) as sampler:
        ...  # start the job, wait for it
    facts = sampler.facts()

`ioprof.format.series` defines the series, their units and their meaning; `samplers.file` specifies
the file.
"""

from ioprof.instrument.samplers.sampler import Sampler

__all__ = ["Sampler"]
