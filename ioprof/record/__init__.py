"""Runs inside the job: spans and the files they are written to."""
