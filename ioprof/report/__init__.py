"""Summaries and traces as text, HTML and figures."""
