"""Follows a job that is being recorded: reads its capture files while the job writes them, and
keeps sums.

follower.py     the new records of a capture file since the last look
spool.py        all capture files of a job, with the ids of ranks and workers
live.py         sums: steps, waits and their causes, bytes by source, workers, the slowest reads
metrics.py      the sums as metrics, in the text of Prometheus, and the server that gives them out
otlp.py         sends them to a collector of OpenTelemetry
watched_job.py  all of it for one job: looks, and the growth of the sums per second
screen.py       what is shown of a job, on a terminal or in lines
"""
