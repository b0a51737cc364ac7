"""Copies of a dataset on a folder of the node."""
