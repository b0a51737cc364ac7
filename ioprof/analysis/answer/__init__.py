"""The answer: what the job waited for most, how sure that is, and what to change."""
