"""Times of several clocks on one."""
