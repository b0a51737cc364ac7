"""Studies over several settings: a TOML file each, which a user copies and changes.

    grid_file.py   what a file says
    cells.py       makes the cell of each combination: a run, or a simulation

    about = "..."                     what the study asks
    source = "..."                    where that is from; with `year`, or `undated`: why none
    kind = "simulate"                 or "run"
    quantity = "total_s"              or samples_per_s, use (of `ioprof.analysis.grid.QUANTITIES`)

    [job]                             options of all cells: of `ioprof simulate` with `system` and
    system = "tsubame3"               `job`, or of `ioprof run`
    ranks = 4

    [dataset]                         of runs: options of `ioprof convert`, and how many `images`
    images = 600

    [[axes]]                          the last axis are the columns, the one before it the rows
    name = "link"
    values = [{ is = "TCP", link = "tcp" }, { is = "verbs", link = "verbs" }]

A value of an axis has its name and any of those options; `"storage.bytes_per_s" = 1e9` replaces a
value of the simulated system.
"""
