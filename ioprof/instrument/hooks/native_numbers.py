"""What `Steps` and `Evaluation` extend: numbers that the extension reads and counts in each step of
a job (`native/spans/steps.h`, `passes.h`). In an interpreter that cannot load it, they are
attributes like any other.
"""

try:
    from ioprof._native import PassNumbers, StepNumbers
except ImportError:  # this interpreter cannot load it

    class PassNumbers:  # type: ignore[no-redef]
        """Of passes in evaluation mode."""

    class StepNumbers:  # type: ignore[no-redef]
        """Of steps."""


__all__ = ["PassNumbers", "StepNumbers"]
