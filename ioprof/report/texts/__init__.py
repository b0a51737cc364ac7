"""What reports say, in words."""
