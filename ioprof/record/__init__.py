"""What runs inside the job: spans, hooks and samplers. Nothing here imports torch before the job does."""
