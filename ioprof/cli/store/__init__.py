"""Commands on a store of runs: `history`."""
