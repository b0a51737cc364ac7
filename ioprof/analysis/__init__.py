"""Pure functions on a Trace: nothing here prints, draws, reads a clock or the environment.

Modules, from the bottom up:

    selection.py              which spans to look at, rank by rank, and of a large rank in pieces of
                              time
    intervals.py              sets of time, and how windows are shared out among classes of them
    steps.py                  the steps of every rank
    blocked_sends.py          finished batches that come late because a worker reads
    lineage.py                what each wait for a batch was for
    lateness.py               what made a rank late: its time since it met another rank, less that
                              rank's
    stragglers.py             collectives across ranks: the last to arrive, and what made it late
    gpu_windows.py            the times in which GPUs were recorded
    launches.py, copies.py    waiting for kernel launches; bytes that were copied to and from
                              devices
    unmeasured.py             which causes are null, and why
    blame.py                  all of it: what each step's time is charged to
    overlap.py, reads.py      what compute hid; what was read
    pipes.py                  files that programs such as `cat` read and send through pipes
    workers_time.py           what the workers were busy with, waited for or not
    loaders.py                the loaders of a job, told apart, and their samples
    read_patterns.py          times of reads by source, size and file; costly ways of reading; with
                              queue_depth.py
    read_sums.py              the sums that it takes, over all reads
    storage_bound.py          whether storage was bound by its latency or by its rate
    duration_classes.py, student.py   quantiles of durations; intervals of means
    epoch_prediction.py       the time of a whole job from its first epochs
    variation.py, skew.py     how waits, epochs and the arrivals of ranks vary
    findings.py               all of these
    devices.py                what devices and servers delivered
    stacks.py                 which lines of Python the time went to that no span explains
    demand.py, capture.py     what storage must deliver; how far the recording can be trusted
    staging_cost.py           what staging cost, and what it saves
    options.py, verdict.py    the answer in a word, a sentence, and what to change, in the words of
                              the job
    totals.py                 what those find that look at all spans, read once for all of them
    summary.py                `summarise(trace)`, which returns `ioprof.format.run_record.Summary`
    kept.py                   the analysis of a large run, as it stands in its folder
    run.py                    `Run`: a trace with its table of steps and its summary
    comparing.py              whether one run differs from another, with intervals
"""
