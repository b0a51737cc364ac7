"""A recorded pipeline replayed: what a change would bring, and what each cause costs the job
(DESIGN 8, laws 3 and 4).

    recorded.py    a Trace -> Pipeline: what the workers made, and what the training loop did
                   between taking batches
    pipeline.py    the types of a recorded pipeline; nothing in it depends on how it was recorded
    cores/         which part of the measured times was computation, which was waiting for a core,
                   and who else used the cores
    storage_use.py latency and rate of the storage that the reads show
    changes.py     Change: what is different from the recorded run
    plan.py        Pipeline + Change -> Plan: segments of work in seconds, on cores and storage that
                   all share
    engine.py      the discrete-event simulation of a Plan
    prediction.py  whatif: the baseline's error, the prediction, and its range
    gains.py       what each cause costs: replay with that cause at no cost
    advice.py      findings with their predicted gain or the reason why there is none, in order
    accuracy.py    how far predictions were from runs, by kind of change, and when nothing is
                   predicted
    proof.py       what was measured in pairs of runs, beside what was predicted

Times are measured ones in the order in which they occurred, never their means; where a changed
pipeline needs more of them than were measured, they are drawn from the measured ones with a fixed
seed. The same run and change give the same prediction.
"""
