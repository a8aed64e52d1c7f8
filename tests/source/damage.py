"""Damaged image files, always the same ones.

    python -m source.damage

decodes them and prints the outcomes. It runs in its own process, since a native decoder that
crashes ends the process.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from random import Random

import cv2
import numpy as np

COUNT = 500
SUFFIXES = "jpg png webp gif bmp tiff avif jp2 ppm".split()  # any of which a file may have


def damaged() -> Iterator[tuple[str, str, bytes]]:
    """Yield the kind of damage, a suffix, and the bytes of a file, `COUNT` times."""
    random = Random(4)  # noqa: S311 - not a secret
    sound = list(_sound())
    kinds = [_cut, _flip_bits, _rename, _empty, _shuffle]
    for index in range(COUNT):
        suffix, data = random.choice(sound)
        damage = kinds[index % len(kinds)]
        if damage is _rename:
            other_suffixes = list(SUFFIXES)
            other_suffixes.remove(suffix)
            suffix = random.choice(other_suffixes)
        yield damage.__name__.strip("_"), suffix, damage(data, random)


def _sound() -> Iterator[tuple[str, bytes]]:
    """JPEG, PNG and WebP files of several kinds and sizes, with gradients and with noise."""
    kinds = [
        ("jpg", [cv2.IMWRITE_JPEG_QUALITY, 90]),
        ("jpg", [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]),
        ("jpg", [cv2.IMWRITE_JPEG_RST_INTERVAL, 2]),
        ("png", []),
        ("webp", []),
        ("webp", [cv2.IMWRITE_WEBP_QUALITY, 60]),
    ]
    for height, width in ((1, 1), (33, 47), (240, 320)):
        y, x = np.mgrid[:height, :width]
        smooth = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1)
        noise = np.random.default_rng(height).integers(0, 255, (height, width, 3))
        for image in (smooth.astype(np.uint8), noise.astype(np.uint8)):
            for suffix, options in kinds:
                yield suffix, cv2.imencode(f".{suffix}", image, options)[1].tobytes()


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(1, len(data))]


def _flip_bits(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice([1, 2, 10, 100])):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _rename(data: bytes, _: Random) -> bytes:
    return data


def _empty(_: bytes, __: Random) -> bytes:
    return b""


def _shuffle(data: bytes, random: Random) -> bytes:
    """Remove, repeat or overwrite a range of bytes."""
    start, length = random.randrange(len(data)), random.choice([1, 4, 50])
    middle = random.choice([b"", bytes(length), b"\xff" * length, 3 * data[start : start + length]])
    return data[:start] + middle + data[start + length :]


def main() -> None:
    """Decode all files and report the outcomes."""
    from detcli.core.errors import DecodeError
    from detcli.core.opencv import silence_opencv
    from detcli.source.decode import load_bytes

    silence_opencv()
    outcomes: Counter[str] = Counter()
    texts: set[str] = set()
    for kind, _, data in damaged():
        try:
            image = load_bytes(data)
        except DecodeError as error:
            outcomes[f"{kind}: error"] += 1
            texts |= {str(error), error.hint}
        else:
            outcomes[f"{kind}: image"] += 1
            assert image.pixels.shape == (*image.size, 3), kind
            assert image.pixels.dtype == np.uint8, kind
    assert "" not in texts
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
