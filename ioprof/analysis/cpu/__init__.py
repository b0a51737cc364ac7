"""What a job computed on cores: whether it got them, and in which lines of code."""
