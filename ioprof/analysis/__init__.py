"""Pure functions on a Trace: nothing here prints, draws, reads a clock or the environment.

selection.py   which spans to look at, rank by rank, and of a large rank in pieces of time
intervals.py   sets of time, and how windows are shared out among classes of them
graph/         who worked while others waited
charge/        what each step's time is charged to (`blame.py`), and what that needs
reads/         what was read, for which batch, and what storage must deliver
cpu/           whether ranks and workers got cores, and which lines of Python took the time
ranks/         where ranks wait for each other
answer/        the bound and what to change, as codes and facts
totals.py      what those find that look at all spans, read once for all of them
summary.py     `summarise(trace)`, which returns `ioprof.format.run_record.Summary`
kept.py        the analysis of a large run, as it stands in its folder
run.py         `Run`: a trace with its table of steps and its summary
comparing.py   whether one run differs from another, with intervals
"""
