"""Probes of paths and of the network, from their options to their results."""
