"""What is written and read: kinds and causes, the wire format, run.json and summary.json as types,
the trace, the dataset.
"""
