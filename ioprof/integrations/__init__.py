"""ioprof in the loops of libraries, and its results in trackers of experiments: one file each."""
