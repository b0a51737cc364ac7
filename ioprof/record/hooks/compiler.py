"""torch itself, for hooks that ask it whether its compiler reads their code, instead of running it: it shall find nothing there.

The compiler knows the answer to `of_torch.compiler.is_compiling()` while it reads, and drops what does not apply.
"""

import sys
from typing import Any

of_torch: Any = sys.modules["torch"]
"""Of what it will hold, not all is there when this module is loaded: the hooks are installed while torch is imported."""
