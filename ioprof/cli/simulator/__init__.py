"""Commands that predict what was not run: `extrapolate`, `simulate` and `size`."""
