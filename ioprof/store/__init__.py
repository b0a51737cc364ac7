"""A store of runs: what was recorded of many runs besides their spans, in one SQLite database."""
