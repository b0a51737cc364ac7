"""What runs inside the processes of a job: spans, hooks and samplers. Nothing here imports torch
before the job does.
"""
