"""Trains next to nothing on photographs that DALI decodes, and blurs if that is asked for:
operators_of_dali.py FOLDER decode|blur STEPS."""

import sys

import torch
from descent import Descent
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator

BATCH, SIZE = 8, 32
folder, kind, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])


@pipeline_def(batch_size=BATCH, num_threads=1, device_id=None)
def photographs():
    encoded, _ = fn.readers.file(file_root=folder, name="reader")
    pixels = fn.decoders.image(encoded, device="cpu")
    if kind == "blur":
        pixels = fn.gaussian_blur(pixels, window_size=[25, 25])
    nearest = types.DALIInterpType.INTERP_NN  # costs next to nothing, whatever else runs here
    return fn.resize(pixels, size=(SIZE, SIZE), antialias=False, interp_type=nearest)


model = torch.nn.Linear(SIZE, 1)
optimizer = Descent(model.parameters(), 1e-6)
iterator = DALIGenericIterator([photographs()], ["pixels"], size=-1)
for _, batch in zip(range(steps), iterator, strict=False):
    optimizer.zero_grad()
    model(batch[0]["pixels"][:, 0, :, 0].float()).square().mean().backward()
    optimizer.step()
