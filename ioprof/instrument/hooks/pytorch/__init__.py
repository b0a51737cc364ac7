"""Hooks into torch."""
