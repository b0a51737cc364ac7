"""Page faults of mapped files, from the kernel's perf records."""
