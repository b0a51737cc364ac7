"""Runs in the formats of other programs.

speedscope.py     stack samples for https://www.speedscope.app
"""
