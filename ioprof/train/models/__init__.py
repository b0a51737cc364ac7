"""Models of the built-in job."""
