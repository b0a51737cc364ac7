"""What a job read, from where, how long it took, and what storage has to deliver."""
