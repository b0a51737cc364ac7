"""How the ranks of the built-in job divide the work among them."""

from typing import Final

DATA: Final = "data"
"""Each rank has the whole model and its own samples; the gradients are averaged."""
PIPELINE: Final = "pipeline"
"""Each rank has some layers of the model."""
FSDP: Final = "fsdp"
"""Each rank has its own samples, and a part of each parameter (fully sharded data parallelism)."""
PARALLEL: Final = (DATA, PIPELINE, FSDP)
