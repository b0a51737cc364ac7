"""What ioprof itself runs: the built-in training job, and what is done to storage and memory for
it.
"""
