"""Loaders: datasets to batches."""
