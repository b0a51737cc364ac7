"""Calls ioprof._bilinear and ioprof._jpeg, built with sanitizers, on images of random sizes, of which some are damaged.

python sanitized_images.py BILINEAR_SO JPEG_SO LIBJPEG CASES SEED
"""

import importlib.machinery
import importlib.util
import io
import random
import sys
from types import ModuleType

from PIL import Image, ImageFile

ImageFile.MAXBLOCK = 1 << 22  # of the encoder's buffer, which has to hold a noisy image where it optimises its codes


def loaded(name: str, path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def side(source: random.Random) -> int:
    return source.choice((source.randint(1, 8), source.randint(1, 40), source.randint(1, 300)))


def box_in(source: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    left, top = source.randrange(width), source.randrange(height)
    return left, top, source.randint(left + 1, width), source.randint(top + 1, height)


def resize_one(bilinear: ModuleType, source: random.Random) -> None:
    width, height, out_width, out_height = (side(source) for _ in range(4))
    pixels, box = source.randbytes(width * height * 3), box_in(source, width, height)
    is_flipped, found = source.random() < 0.5, []
    for is_plain in (False, True):
        out = bytearray(out_width * out_height * 3)
        bilinear.resize_planes(pixels, (width, height), box, out, (out_width, out_height), is_flipped, is_plain)
        found.append(out)
    assert found[0] == found[1], (width, height, box, out_width, out_height)


def jpeg_of(source: random.Random) -> tuple[bytes, int, int]:
    width, height = side(source), side(source)
    image = Image.frombytes("RGB", (width, height), source.randbytes(width * height * 3))
    if source.random() < 0.5:  # smooth: blocks that end early
        image = image.resize((max(1, width // 9), max(1, height // 9))).resize((width, height))
    stream = io.BytesIO()
    options = {"optimize": source.random() < 0.5, "quality": source.choice((5, 50, 90, 100))}
    options |= {"restart_marker_blocks": source.choice((0, 0, 1, 3)), "subsampling": source.choice(("4:4:4", "4:2:2", "4:2:0"))}
    image.convert(source.choice(("RGB", "RGB", "L"))).save(stream, "JPEG", **options)
    return stream.getvalue(), width, height


def decode_one(jpeg: ModuleType, source: random.Random) -> None:
    data, width, height = jpeg_of(source)
    changed = bytearray(data)
    for _ in range(source.choice((0, 0, 1, 3))):
        place = source.randrange(len(changed))
        if source.random() < 0.3:
            del changed[place : place + source.choice((1, 1, 40))]
        else:
            changed[place] = source.randrange(256)
    found = jpeg.size(changed)
    if found is None or found[0] * found[1] > 1_000_000:  # a damaged header
        return
    box, denominator = box_in(source, *found), source.choice((1, 1, 1, 2, 4, 8))
    for to_end in (False, True):
        ours = jpeg.decode(bytes(changed), box, denominator, to_end)
        assert ours == jpeg.decode(bytes(changed), box, denominator, to_end, True), (width, height, box, denominator)
    assert jpeg.check(bytes(changed)) == jpeg.check(bytes(changed), True)


def main(bilinear_path: str, jpeg_path: str, library: str, cases: str, seed: str) -> None:
    source = random.Random(int(seed))
    bilinear, jpeg = loaded("_bilinear", bilinear_path), loaded("_jpeg", jpeg_path)
    jpeg.load(library)
    for _ in range(int(cases)):
        resize_one(bilinear, source)
        decode_one(jpeg, source)
    print("done")


main(*sys.argv[1:])
