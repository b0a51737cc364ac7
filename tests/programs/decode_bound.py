"""A training job whose worker decodes most of the time: decode_bound.py KIND STEPS, with KIND one
of `KINDS`.

The data is made first, in the working directory, and is warm.
"""

import io
import sys
import zlib
from typing import Any

import numpy as np
import torch
from descent import Descent
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Parquet:
    """Row groups that are compressed."""

    def __init__(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        choice = np.random.default_rng(0)
        columns = {f"column {number}": choice.integers(0, 1000, 400_000) for number in range(4)}
        pa.parquet.write_table(
            pa.table(columns), "table.parquet", compression="gzip", row_group_size=100_000
        )
        self.read_table = pa.parquet.read_table

    def decode(self, number: int) -> float:
        return float(
            self.read_table("table.parquet", use_threads=False)[number % 4][number].as_py()
        )


class Video:
    """Frames as arrays."""

    def __init__(self) -> None:
        import av

        self.open = av.open
        rows, columns = np.mgrid[0:480, 0:640]
        with av.open("video.mp4", "w") as container:
            stream = container.add_stream("mpeg4", rate=24)
            stream.width, stream.height = 640, 480
            for number in range(24):
                picture = np.stack(
                    [rows + number, columns - number, rows * columns // 99], 2
                ).astype(np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode(None))

    def decode(self, number: int) -> float:
        with self.open("video.mp4") as container:
            return float(
                np.mean(
                    [
                        frame.to_ndarray(format="rgb24")[number % 480, 0, 0]
                        for frame in container.decode(video=0)
                    ]
                )
            )


class Tokens:
    """Texts."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        words = [f"word{number * 7919 % 613} and {number % 97}" for number in range(10_000)]
        self.texts = [" ".join(words[start:]) for start in range(8)]
        self.tokenizer = Tokenizer(models.BPE(unk_token="?"))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["?"], show_progress=False)
        self.tokenizer.train_from_iterator([self.texts[0][:9000]], trainer)

    def decode(self, number: int) -> float:
        return float(len(self.tokenizer.encode_batch([self.texts[number % 8]])[0].ids))


class Compressed:
    """Arrays that are compressed by the standard library."""

    def __init__(self) -> None:
        self.data = zlib.compress(
            np.random.default_rng(0).integers(0, 60, 8_000_000, np.uint8).tobytes(), 1
        )

    def decode(self, number: int) -> float:
        return float(io.BytesIO(zlib.decompress(self.data)).getvalue()[number])


KINDS = {"parquet": Parquet, "video": Video, "tokens": Tokens, "zlib": Compressed}


class Samples(Dataset[Any]):
    """As many as wanted."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = KINDS[kind](), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((8,), self.kind.decode(number))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(8, 1)
    optimizer = Descent(model.parameters(), 1e-9)
    for batch in DataLoader(
        Samples(sys.argv[1], 6 * int(sys.argv[2])), batch_size=6, num_workers=1
    ):
        loss = model(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.9f}")
