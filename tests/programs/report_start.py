"""Print whether the hooks of ioprof were started here, and record a span of the user's own."""

import sys

hooks = sys.modules.get("ioprof.instrument.hooks")
print("hooked" if hooks is not None and hooks.installed() is not None else "not hooked", flush=True)
