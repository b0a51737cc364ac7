"""The built-in training job."""
