"""Pure functions on a Trace: nothing here prints, draws, reads a clock or the environment.

Modules, from the bottom up:

    facts.py, selection.py    what is known of the run; which spans to look at, rank by rank
    intervals.py              sets of time, and how windows are shared out among classes of them
    steps.py                  the steps of every rank
    lineage.py                what each wait for a batch was for
    peers.py                  collectives across ranks: the last to arrive, and what it did meanwhile
    unmeasured.py             which causes are null, and why
    blame.py                  all of it: what each step's time is charged to
    overlap.py, reads.py      what compute hid; what was read
    demand.py, capture.py     what storage must deliver; how far the recording can be trusted
    verdict.py                the answer in a word, a sentence, and what to change
    summary.py, result.py     `summarise(trace)`, and the plain data that it returns
"""
