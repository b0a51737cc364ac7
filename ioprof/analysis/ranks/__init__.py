"""What ranks wait for each other."""
