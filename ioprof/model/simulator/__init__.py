"""A job on a system that may not be at hand: what its epochs take, by simulation of all ranks.

    values.py         a number with its range and its source
    system.py         a computer with its storage: `ioprof/model/systems/*.toml`, or a user's file
    jobs.py           a job, as described (model, device, layout; `workloads.toml`) or as recorded
    cache.py          what of a later epoch the page cache of the nodes answers
    exchange_time.py  the exchange of gradients among any number of ranks
    engine.py         the steps of all ranks: workers, what they share, the barrier
    simulation.py     epochs, staging, accelerators held; at the ends of all ranges
    sizing.py         what a job needs of a system
    asked.py          what the commands ask for
    validation.py     how far it was from published results and from runs (`validation.toml`)

The pipeline is that of `ioprof.model.pipeline`: workers make batches in turn, and so many are
ahead of the loop. `ioprof.model.engine` replays each task of a recorded run as an event; here a
step of all ranks is one operation on arrays, which is what thousands of ranks need.
"""
