"""Converters: image sources to datasets."""
