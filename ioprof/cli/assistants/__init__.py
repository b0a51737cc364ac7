"""Commands for assistants: `mcp`."""
