"""When a training loop evaluates its model, as far as no loader says so: by the mode of the model.

The evidence is forward passes of a model in evaluation mode (`Module.eval`) without gradients, one
after the other with no training between. They are a `validate` span named `BY_MODE`, from the first
of them for as long after the last one as there was between two, or to the next training if that
comes before: a forward pass with gradients, a backward pass, a wait for a batch to train on. What a
program does later, such as preparing the data of the next fold, is no evaluation. Other loops call
models like this too, and those are left out:

- in nearly every step: the targets of a distillation, labels that the model makes for unlabelled
  data. So `FEWEST_STEPS` steps must have ended since the passes before;
- on much smaller batches than those of the training: a loop that makes its own data by playing or
  sampling;
- where batches to validate on were waited for, since these say when it was.

Forward passes without gradients of a model in training mode, by the same rules, are neither
training nor an evaluation: such as a search for hard examples, or new statistics of batch
normalisation. They are a `user` span with the name and line of the function that calls the model,
and no computation.

A wait for a batch is one to validate on too if the model that was trained is in evaluation mode,
and the loader has not fed a step.
"""

import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ioprof.format.schema import BY_MODE
from ioprof.instrument.hooks.loader_numbers import is_of_job
from ioprof.instrument.hooks.native_numbers import PassNumbers
from ioprof.instrument.span import emit

FEWEST_STEPS: Final = 2
"""Steps between two evaluations."""
LEAST_BATCH_RATIO: Final = 0.5
"""Of the samples of a training batch, that the largest batch of an evaluation must have."""
_MOST_SIZES: Final = 8
"""Training batches whose size is looked at. Of other passes those are that are first, second,
fourth, eighth and so on."""


class Evaluation(PassNumbers):
    """What one thread has called without training since it trained last. The extension counts the
    passes by itself, see `native/spans/passes.h`: loops that play call a model in each step.
    """

    __slots__ = ("_caller", "_size", "trained_size")

    def __init__(self) -> None:
        self.num_passes = 0
        """Passes without gradients since the last training."""
        self.in_pass = False
        """One is in progress."""
        self.end_ns = 0
        """When the last one ended."""
        self.was_fed = False
        """Batches to validate on were waited for meanwhile."""
        self._begin_ns = 0
        self._caller: str | None = None
        """Of passes in training mode: the function that makes them."""
        self._is_apart = False
        """Enough steps have ended since the passes before."""
        self._is_like_training = True
        """Their batches are as large as those of the training, as far as is known."""
        self._ended_at = 0
        self._size: int | None = None
        self.trained_size = self._num_sizes = 0
        """Samples of the largest of the first batches that a model was trained on."""
        self._trained: Callable[[], Any] | None = None
        self._evaluated: Callable[[], Any] | None = None

    def begin_pass(self, model: Any, arguments: tuple[Any, ...], now_ns: int, step: int) -> None:
        """A model is about to be called without gradients; `step` is the number of the step in
        progress.
        """
        if not self.num_passes:
            self._begin_ns, self._is_apart = now_ns, step - self._ended_at >= FEWEST_STEPS
            self._evaluated = weakref.ref(model)
        self.num_passes += 1
        self.in_pass = True
        if self._is_apart and self.num_passes & (self.num_passes - 1) == 0:
            self.look(model, arguments)

    def look(self, model: Any, arguments: tuple[Any, ...]) -> None:
        """At one of several passes that may be an evaluation."""
        size = _num_samples(arguments)
        if self.num_passes == 1:
            self._caller = _caller(sys._getframe(1)) if model.training else None  # noqa: SLF001
            self._size = size
        self._size = None if size is None or self._size is None else max(size, self._size)
        self._is_like_training = (
            self._size is None or self._size >= LEAST_BATCH_RATIO * self.trained_size
        )

    def train(self, model: Any, arguments: tuple[Any, ...]) -> None:
        """A model in training mode is about to be called, with gradients."""
        self.was_fed = False
        if self._trained is None or self._trained() is not model:
            self._trained = weakref.ref(model)
        if self._num_sizes < _MOST_SIZES:
            self._num_sizes += 1
            self.trained_size = max(self.trained_size, _num_samples(arguments) or 0)

    @property
    def is_known(self) -> bool:
        """Whether the passes are no part of a training step, and no loader says what they are."""
        return bool(self._is_apart and self._is_like_training and not self.was_fed)

    def end(self, now_ns: int, step: int, trains: bool) -> None:
        """The thread trains again from now on, or waits for a batch to do so. It has made a
        training step before if it `trains`.
        """
        if trains and self.is_known:
            kind, name = ("user", self._caller) if self._caller else ("validate", BY_MODE)
            mean_ns = (self.end_ns - self._begin_ns) // self.num_passes
            after_ns = mean_ns if self.num_passes > 1 else 0
            emit(kind, self._begin_ns, min(now_ns, self.end_ns + after_ns), name)
        self.num_passes, self.was_fed, self._ended_at = 0, False, step

    @property
    def is_in_progress(self) -> bool:
        """Whether the model that was trained, or that was called since, is in evaluation mode
        now.
        """
        reference = self._evaluated if self.num_passes else self._trained
        model = reference() if reference is not None else None
        return model is not None and not model.training


def wants_gradients() -> bool:
    """Whether what this thread computes is recorded for a backward pass."""
    return bool(sys.modules["torch"].is_grad_enabled())


def _num_samples(arguments: tuple[Any, ...]) -> int | None:
    """The first dimension of the first argument; None: it has none."""
    shape = getattr(arguments[0], "shape", None) if arguments else None
    return int(shape[0]) if shape else None


def _caller(frame: FrameType) -> str:
    """The function of the job's own code that calls the model: `mine (train.py:20)`."""
    while frame.f_back is not None and (
        not is_of_job(frame.f_code.co_filename)
        or frame.f_globals.get("__name__", "").startswith("ioprof.")
    ):
        frame = frame.f_back
    code = frame.f_code
    return f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"
