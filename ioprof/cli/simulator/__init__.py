"""Commands that ask the simulator: `simulate` and `size`."""
