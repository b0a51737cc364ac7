"""Calls ioprof._bilinear and ioprof._jpeg, built with sanitizers, on images of random sizes, of
which some are damaged.

python sanitized_images.py BILINEAR_SO JPEG_SO LIBJPEG CASES SEED [FOLDER]

JPEGs are generated; with FOLDER every second one is a file of it. Most are damaged in headers,
tables or scans. All must give the same pixels, warnings and errors as where libjpeg decodes the
codes. Standard error ends with the number of the case.
"""

import io
import random
import sys
import time
from pathlib import Path
from types import ModuleType

from extension import loaded
from PIL import Image, ImageFile

# of the encoder's buffer, which has to hold a noisy image where it optimises its codes
ImageFile.MAXBLOCK = 1 << 22
MOST_PIXELS = 2_000_000  # of a damaged header, so that a case takes milliseconds
MARKERS = bytes(
    (
        0,
        0xC0,
        0xC1,
        0xC2,
        0xC3,
        0xC4,
        0xC9,
        0xD0,
        0xD3,
        0xD7,
        0xD8,
        0xD9,
        0xDA,
        0xDB,
        0xDD,
        0xE0,
        0xEE,
        0xFE,
        0xFF,
    )
)


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
        bilinear.resize_planes(
            pixels, (width, height), box, out, (out_width, out_height), is_flipped, is_plain
        )
        found.append(out)
    assert found[0] == found[1], (width, height, box, out_width, out_height)


def jpeg_of(source: random.Random) -> bytes:
    width, height = side(source), side(source)
    image = Image.frombytes("RGB", (width, height), source.randbytes(width * height * 3))
    if source.random() < 0.5:  # smooth: blocks that end early
        image = image.resize((max(1, width // 9), max(1, height // 9))).resize((width, height))
    stream = io.BytesIO()
    options = {
        "optimize": source.random() < 0.5,
        "quality": source.choice((5, 50, 90, 100)),
        "progressive": source.random() < 0.1,
    }
    options |= {
        "restart_marker_blocks": source.choice((0, 0, 1, 3)),
        "subsampling": source.choice(("4:4:4", "4:2:2", "4:2:0")),
    }
    image.convert(source.choice(("RGB", "RGB", "RGB", "L", "CMYK"))).save(stream, "JPEG", **options)
    return stream.getvalue()


def segments_of(data: bytes) -> dict[int, list[tuple[int, int]]]:
    """The places of the marker segments before the scan, by marker, without the two bytes of the
    marker; 0: of the scan's data."""
    found: dict[int, list[tuple[int, int]]] = {}
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF and data[place + 1] not in (0xFF, 0xD9):
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4])
        found.setdefault(data[place + 1], []).append((place + 2, min(end, len(data))))
        if data[place + 1] == 0xDA:
            found[0] = [(min(end, len(data)), len(data))]
            break
        place = end
    return found


def damage(data: bytearray, other: bytes, source: random.Random) -> None:
    """One change: of a byte, a bit or a slice of one segment, or of a table for that of another
    image."""
    segments = segments_of(data)
    marker = source.choice([*segments, 0, 0, 0xC4]) if segments else 0
    start, end = source.choice(segments.get(marker, [(0, len(data))]))
    if start >= end:
        return
    place, what = source.randrange(start, end), source.randrange(10)
    if what < 3:
        data[place] = source.choice(
            (source.randrange(256), 0, 1, 0xFF, data[place] ^ 1 << source.randrange(8))
        )
    elif what == 3:
        del data[place : place + source.choice((1, 1, 2, 40, 1000))]
    elif what == 4:
        data[place:place] = bytes((0xFF, source.choice(MARKERS)))
    elif what == 5:
        data[place:place] = data[max(start, place - source.choice((1, 64, 1000))) : place]
    elif what == 6:
        data[place : place + source.choice((0, 1, 2, 64))] = source.randbytes(
            source.choice((1, 2, 64))
        )
    elif what == 7 and marker in (0xC0, 0xC4, 0xDA, 0xDB, 0):
        theirs = segments_of(other).get(marker, [(0, 0)])
        data[start:end] = other[slice(*source.choice(theirs))]
    elif what == 8:
        data[start:end] = (
            source.sample(data[start:end], end - start) if end - start < 500 else data[start:place]
        )
    elif source.random() < 0.3:
        del data[place:]
        data += source.choice((b"", b"\xff", b"\xff\xd9"))


def decode_one(jpeg: ModuleType, source: random.Random, files: list[Path]) -> None:
    originals = [
        source.choice(files).read_bytes() if files and source.random() < 0.5 else jpeg_of(source)
        for _ in range(2)
    ]
    changed = bytearray(originals[0])
    for _ in range(source.choice((0, 1, 1, 1, 2, 5))):
        damage(changed, originals[1], source)
    data = bytes(changed)
    found = jpeg.size(data)
    pixels = 0 if found is None else found[0] * found[1]
    if found is not None and 0 < pixels <= MOST_PIXELS:
        box, denominator = box_in(source, *found), source.choice((1, 1, 1, 2, 4, 8))
        for to_end in (False, True):
            ours = jpeg.decode(data, box, denominator, to_end)
            assert ours == jpeg.decode(data, box, denominator, to_end, True), (
                found,
                box,
                denominator,
            )
    if pixels <= MOST_PIXELS:
        assert jpeg.check(data) == jpeg.check(data, True)


def main(
    bilinear_path: str,
    jpeg_path: str,
    library: str,
    cases: str,
    seed: str,
    folder: str | None = None,
) -> None:
    bilinear, jpeg = loaded("_bilinear", bilinear_path), loaded("_jpeg", jpeg_path)
    jpeg.load(library)
    files = [] if folder is None else sorted(Path(folder).rglob("*.JPEG"))
    slowest = (0.0, 0)
    for number in range(int(cases)):
        print(number, file=sys.stderr)
        source = random.Random(f"{seed} {number}")
        resize_one(bilinear, source)
        began = time.monotonic()
        decode_one(jpeg, source, files)
        slowest = max(slowest, (time.monotonic() - began, number))
    print(f"slowest: {slowest[0]:.2f} s, case {slowest[1]}", file=sys.stderr)
    print("done")


main(*sys.argv[1:])
