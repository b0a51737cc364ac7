"""The real model on the CPU: nothing is copied to a device, and the gradients are exchanged over Gloo."""

import torch
from torch import nn

from ioprof.clock import monotonic_ns
from ioprof.loaders.base import Batch
from ioprof.record.span import emit
from ioprof.train.accelerators import COMM_STREAM
from ioprof.train.accelerators.ddp import exchanging
from ioprof.train.models import make_model


class CpuAccelerator:
    """Trains where it is launched: `launch` returns when the step is done."""

    def __init__(self, num_classes: int, ranks: int) -> None:
        torch.manual_seed(0)
        self._model = make_model("cpu", num_classes)
        if ranks > 1:
            self._model = exchanging(self._model, self._bucket_ready, self._bucket_done)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._loss = nn.CrossEntropyLoss()
        self._step = 0
        self._ready_ns: dict[int, int] = {}
        self._last_ready_ns = 0

    def launch(self, batch: Batch, step: int) -> None:
        """Do the whole training step: forward, backward with the exchange under it, optimizer."""
        self._step, self._last_ready_ns = step, 0
        begin_ns = monotonic_ns()
        loss = self._loss(self._model(batch.images), batch.labels)
        loss.backward()
        # The backward pass has computed its last gradient when the last bucket is ready; what follows is waiting for the exchange.
        exchanged_ns = monotonic_ns()
        emit("compute", begin_ns, self._last_ready_ns or exchanged_ns, batch=batch.number, step=step)
        self._optimizer.step()
        self._optimizer.zero_grad()
        emit("compute", exchanged_ns, monotonic_ns(), batch=batch.number, step=step)

    def synchronize(self, step: int) -> None:
        """Nothing to wait for: the step was done when `launch` returned."""

    def close(self) -> None:
        """Nothing to stop."""

    def _bucket_ready(self, index: int, num_bytes: int) -> None:
        self._ready_ns[index] = self._last_ready_ns = monotonic_ns()

    def _bucket_done(self, index: int, num_bytes: int) -> None:
        begin_ns = self._ready_ns[index]
        emit("comm", begin_ns, monotonic_ns(), f"gradients {index}", bytes=num_bytes, step=self._step, stream=COMM_STREAM)
