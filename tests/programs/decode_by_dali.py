"""Trains on photographs that DALI reads and decodes: decode_by_dali.py FOLDER cpu|mixed STEPS."""

import sys

import torch
from descent import Descent
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from torch import nn

BATCH, SIZE = 32, 96
decoder, steps = sys.argv[2], int(sys.argv[3])
device = "cuda" if torch.cuda.is_available() else "cpu"


@pipeline_def(batch_size=BATCH, num_threads=2, device_id=0 if device == "cuda" else None)
def photographs():
    encoded, _ = fn.readers.file(
        file_root=sys.argv[1] + "/train", random_shuffle=True, name="reader"
    )
    pixels = fn.decoders.image(encoded, device=decoder, output_type=types.RGB)
    return fn.resize(pixels, size=(SIZE, SIZE))


def main() -> None:
    model = nn.Sequential(nn.Linear(3 * SIZE * SIZE, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = Descent(model.parameters(), lr=0.01)
    made = 0
    while made < steps:
        for batch in DALIGenericIterator([photographs()], ["pixels"], size=BATCH * 8):
            rows = batch[0]["pixels"].to(device).reshape(BATCH, -1).float() / 255
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
            made += 1


main()
