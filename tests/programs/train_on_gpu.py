"""Training loops on a GPU, each with one known fault. Arguments: the fault, steps, a folder of
images; and `without`: the same loop without the fault; `workers=4`: loader workers. Prints the
milliseconds of a steady step.

Without a GPU the same loops run on the CPU with small sizes: to see that they run, not what is said
of them.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset

IS_GPU: Final = torch.cuda.is_available()
DEVICE: Final = "cuda" if IS_GPU else "cpu"
WIDTH: Final = 4096 if IS_GPU else 32
INPUTS: Final = 64
FEW, MANY = (256, 8192) if IS_GPU else (8, 16)
"""Rows of a batch: computed in about a millisecond, and in about twenty."""
PICTURES: Final = (64, 3, 512, 512) if IS_GPU else (2, 3, 64, 64)  # 201 MB of float32
WITHOUT: Final = "without" in sys.argv
WORKERS: Final = next(
    (int(word.partition("=")[2]) for word in sys.argv if word.startswith("workers=")), 1
)
LARGE: Final = 256 if IS_GPU else 1  # layers of the checkpoint, of 1 MB


class Rows(Dataset[torch.Tensor]):
    """Batches that are in memory already."""

    def __init__(self, steps: int, rows: int) -> None:
        self.batches = torch.randint(0, 255, (8, rows, INPUTS), dtype=torch.uint8)
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batches[index % len(self.batches)]


class Pictures(Dataset[torch.Tensor]):
    """The same large batch in each step, page-locked or not."""

    def __init__(self, steps: int, is_pinned: bool) -> None:
        batch = torch.rand(PICTURES)
        self.batch, self.steps = batch.pin_memory() if is_pinned and IS_GPU else batch, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch


class Decoded(Dataset[torch.Tensor]):
    """Photographs that are decoded when they are asked for."""

    def __init__(self, folder: str, samples: int) -> None:
        self.paths = [
            path
            for path in sorted(Path(folder).rglob("*"))
            if path.suffix.lower() in (".jpg", ".jpeg")
        ]
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        from PIL import Image

        with Image.open(self.paths[index % len(self.paths)]) as image:
            small = image.convert("RGB").resize((INPUTS, 1))
        return torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)[:INPUTS]


class Stopwatch:
    """Prints the mean time of the steps after the first fifth of them, in which a job warms up. The
    device is idle at both ends."""

    def __init__(self) -> None:
        self.number, self.first = 0, int(sys.argv[2]) // 5
        self.since = 0.0

    def step(self) -> None:
        if self.number == self.first:
            self.since = self._now()
        self.number += 1

    def end(self) -> None:
        print(f"{(self._now() - self.since) / (self.number - self.first) * 1e3:.3f} ms")

    def _now(self) -> float:
        if IS_GPU:
            torch.cuda.synchronize()
        return time.perf_counter()


def network(layers: int = 8, width: int = WIDTH, outputs: int = 10) -> torch.nn.Sequential:
    """A network of linear layers in half precision."""
    hidden = [
        part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())
    ]
    made = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, width), *hidden, torch.nn.Linear(width, outputs)
    )
    return made.to(DEVICE, torch.bfloat16)


def think(seconds: float) -> int:
    """The fault: computes in Python for that long."""
    return 0 if WITHOUT else work(seconds)


def work(seconds: float) -> int:
    """Computes in Python for that long."""
    end, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        turns += 1
    return turns


def give_back() -> None:
    """Memory that is not used, to the device."""
    if not WITHOUT:
        torch.cuda.empty_cache()


def count_confusions(outputs: torch.Tensor) -> int:
    """A metric in Python, from values on the host."""
    if WITHOUT:
        return 0
    rows = outputs.float().cpu().tolist()
    think(0.015)
    return sum(max(range(len(row)), key=row.__getitem__) == 0 for row in rows[:64])


def batches(dataset: Dataset[torch.Tensor], workers: int = 0) -> Iterator[torch.Tensor]:
    """Of a loader that leaves the batches as they are, page-locked."""
    yield from DataLoader(
        dataset, batch_size=None, num_workers=workers, pin_memory=IS_GPU and workers > 0
    )


def train(
    loader: Iterator[torch.Tensor],
    model: torch.nn.Module,
    after: Callable[[int, torch.Tensor, torch.Tensor], object] | None = None,
) -> None:
    """The usual loop; `after` gets the step, the loss and the outputs."""
    optimizer, watch = torch.optim.SGD(model.parameters(), lr=1e-4), Stopwatch()
    for step, batch in enumerate(loader):
        watch.step()
        inputs = batch.to(DEVICE, non_blocking=True)
        if inputs.dim() == 4:
            inputs = inputs.mean(dim=(1, 2))[:, :INPUTS]
        outputs = model(inputs.to(torch.bfloat16) / 255)
        loss = outputs.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if after:
            after(step, loss, outputs)
    watch.end()


def evaluated(steps: int) -> None:
    """A loop that makes its batches itself, and validates every 20 steps on 60 more: no loader."""
    data = torch.randint(0, 255, (200_000,), dtype=torch.uint8)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def get_batch() -> torch.Tensor:
        starts = torch.randint(len(data) - INPUTS, (MANY,))
        rows = data.unfold(0, INPUTS, 1)[starts]
        return (rows.pin_memory() if IS_GPU else rows).to(DEVICE, non_blocking=True).to(
            torch.bfloat16
        ) / 255

    @torch.no_grad()
    def estimate_loss() -> float:
        model.eval()
        losses = [model(get_batch()).float().square().mean().item() for _ in range(60)]
        model.train()
        return sum(losses)

    watch = Stopwatch()
    for step in range(steps):
        watch.step()
        if step % 20 == 0 and not WITHOUT:
            estimate_loss()
        model(get_batch()).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    watch.end()


def prefetched(steps: int) -> None:
    """Copies on a stream of their own, while the device computes the step before."""
    side = torch.cuda.Stream() if IS_GPU else None
    model = network(16)

    def ahead() -> Iterator[torch.Tensor]:
        following: torch.Tensor | None = None
        for batch in batches(Rows(steps, 4 * MANY), workers=2):
            with torch.cuda.stream(side):
                now, following = following, batch.to(DEVICE, non_blocking=True)
            if now is not None:
                yield now
            if side is not None:
                torch.cuda.current_stream().wait_stream(side)

    train(ahead(), model)


def scaled(steps: int) -> None:
    """Mixed precision with a scaler of the loss, which asks the device in each step."""
    model = network(16).float()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-4), torch.amp.GradScaler(DEVICE)
    for batch in batches(Rows(steps, MANY), workers=2):
        with torch.autocast(DEVICE, torch.float16 if IS_GPU else torch.bfloat16):
            loss = model(batch.to(DEVICE).float() / 255).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def lightning(steps: int) -> None:
    """A callback in Python, after each batch, of the library's own loop."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            return self.net(batch.to(torch.bfloat16) / 255).float().square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    class Scores(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            think(0.015)

    options: dict[str, Any] = {
        f"enable_{part}": False for part in ("checkpointing", "progress_bar", "model_summary")
    }
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="gpu" if IS_GPU else "cpu",
        devices=1,
        callbacks=[Scores()],
        logger=False,
        **options,
    )
    trainer.fit(Module(), DataLoader(Rows(steps, FEW), batch_size=None, num_workers=2))


def huggingface(steps: int) -> None:
    """The trainer of transformers with a small GPT-2, and a dataset that tokenises in Python."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Texts(Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return steps * 8

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            think(0.005)
            ids = torch.arange(index, index + 128) % 1000
            return {"input_ids": ids, "labels": ids}

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=1000, n_layer=4, n_embd=256, n_head=4, n_positions=128)
    )
    options = TrainingArguments(
        "out",
        max_steps=steps,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        dataloader_num_workers=1,
        logging_steps=50,
        disable_tqdm=True,
    )
    Trainer(model, options, train_dataset=Texts()).train()


def compiled(steps: int) -> None:
    """CUDA graphs by torch.compile."""
    model = network(16)
    train(
        batches(Rows(steps, MANY), workers=2),
        torch.compile(model, mode="reduce-overhead") if IS_GPU else model,
    )  # type: ignore[arg-type]


def saved(steps: int) -> None:
    """A checkpoint of the whole state every 20 steps."""
    model = network(2)
    extra = torch.nn.ParameterList(
        [torch.nn.Parameter(torch.zeros(1 << 19, dtype=torch.bfloat16)) for _ in range(LARGE)]
    ).to(DEVICE)

    def save(step: int, _loss: torch.Tensor, _outputs: torch.Tensor) -> None:
        if step % 20 == 19 and not WITHOUT:
            torch.save({"model": model.state_dict(), "extra": extra.state_dict()}, "checkpoint.pt")

    train(batches(Rows(steps, FEW), workers=2), model, save)


def in_stages(steps: int) -> None:
    """Twelve batches for each step of the optimizer."""
    model = network(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    watch = Stopwatch()
    for step, batch in enumerate(batches(Rows(12 * steps, FEW), workers=2)):
        if step % 12 == 0:
            watch.step()
        model(batch.to(DEVICE).to(torch.bfloat16) / 255).float().square().mean().backward()
        think(0.004)
        if step % 12 == 11:
            optimizer.step()
            optimizer.zero_grad()
    watch.end()


def main() -> None:
    """Make the loop with the fault."""
    fault, steps = sys.argv[1], int(sys.argv[2])
    loops: dict[str, Callable[[], object]] = {
        "compute": lambda: train(
            batches(Rows(steps, MANY // 2 if WITHOUT else MANY), workers=2), network(16)
        ),
        "hidden_python": lambda: train(
            batches(Rows(steps, MANY), workers=2), network(16), lambda *_: think(0.003)
        ),
        "half_hidden": lambda: train(
            batches(Rows(steps, MANY // 4 if WITHOUT else MANY), workers=2),
            network(16),
            lambda *_: work(0.010),
        ),
        "python": lambda: train(
            batches(Rows(steps, FEW), workers=2), network(), lambda *_: think(0.02)
        ),
        "item": lambda: train(
            batches(Rows(steps, MANY), workers=2),
            network(16),
            lambda _step, loss, _outputs: loss.item(),
        ),
        "launches": lambda: train(batches(Rows(steps, 16), workers=2), network(400, 64)),
        "pageable": lambda: train(batches(Pictures(steps, WITHOUT)), network(2)),
        "pinned": lambda: train(batches(Pictures(steps, True)), network(2)),
        "outputs": lambda: train(
            batches(Rows(steps, MANY), workers=2),
            network(1, outputs=WIDTH),
            lambda _s, _l, out: out.float().cpu(),
        ),
        "decode": lambda: train(
            iter(DataLoader(Decoded(sys.argv[3], 16 * steps), 16, num_workers=WORKERS)), network(2)
        ),
        "metrics": lambda: train(
            batches(Rows(steps, FEW), workers=2),
            network(),
            lambda _s, _l, out: count_confusions(out),
        ),
        "collected": lambda: train(
            batches(Rows(steps, MANY), workers=2), network(16), lambda *_: give_back()
        ),
        "evaluation": lambda: evaluated(steps),
        "prefetched": lambda: prefetched(steps),
        "scaled": lambda: scaled(steps),
        "lightning": lambda: lightning(steps),
        "huggingface": lambda: huggingface(steps),
        "compiled": lambda: compiled(steps),
        "checkpoint": lambda: saved(steps),
        "accumulated": lambda: in_stages(steps),
    }
    loops[fault]()


if __name__ == "__main__":
    main()
