"""Hooks into other libraries that load, decode or compute beside a job, one file each."""
