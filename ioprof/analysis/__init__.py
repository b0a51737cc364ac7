"""Pure functions on a Trace."""
