"""Small files that would take gigabytes, of every format that is read.

    python -m source.bombs FOLDER

reads each file there in a process of its own, and prints the memory that it took, in MiB beyond
what a process without a bomb has. The limit is a megapixel, which takes 3 MiB.
"""

import json
import os
import resource
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import number_video
import numpy as np
from made_jpegs import encode as encode_jpeg
from made_jpegs import image, insert, segment

from detcli.data.geometry import Pixels

MAX_PIXELS = 1_000_000
MAX_ADDRESSES = 8 << 30
"""Bytes for each process: a bomb that works must not take the machine with it."""

SIDE = 8_000
"""Of the bombs that are complete images, as few bits a pixel as possible."""


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yield file names and contents."""
    for kind in (_pngs, _gifs, _webps, _tiffs, _jpegs, _jpeg2000s, _avifs, _plain, _videos):
        yield from kind()


def _encode(suffix: str, image: Pixels, *options: int) -> bytes:
    return cv2.imencode(suffix, image, options)[1].tobytes()


def _white(side: int = SIDE) -> Pixels:
    return np.full((side, side), 255, np.uint8)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _png(side: int, *chunks: bytes) -> bytes:
    """A PNG of one bit a pixel."""
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(side * (1 + (side + 7) // 8)), 1)
    extra = b"".join(chunks)
    parts = [_chunk(b"IHDR", header), extra, _chunk(b"IDAT", pixels), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _pngs() -> Iterator[tuple[str, bytes]]:
    yield "whole.png", _png(SIDE)
    frame = struct.pack(">IIIIIHHBB", 0, SIDE, SIDE, 0, 0, 1, 1, 0, 0)
    control = _chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))
    yield "frame.apng.png", _png(8, control, _chunk(b"fcTL", frame))
    flood = zlib.compress(bytes(2**27), 1)
    text = _chunk(b"zTXt", b"x\0\0" + flood)
    yield "text.png", _png(8, text * 10)
    yield "pixels.png", _png(8)[:33] + _chunk(b"IDAT", flood) + _chunk(b"IEND", b"")


def _gifs() -> Iterator[tuple[str, bytes]]:
    sound = _encode(".gif", image(48, 64))
    size, huge = struct.pack("<HH", 64, 48), struct.pack("<HH", 60_000, 60_000)
    yield "canvas.gif", sound.replace(size, huge, 1)
    yield "frame.gif", sound[:6] + size + sound[10:].replace(size, huge)


def _webps() -> Iterator[tuple[str, bytes]]:
    image = _encode(".webp", _white(5500), cv2.IMWRITE_WEBP_QUALITY, 1)  # it takes long
    yield "whole.webp", image
    canvas = struct.pack("<4sII", b"VP8X", 10, 0) + (7).to_bytes(3, "little") * 2
    body = b"WEBP" + canvas + image[12:]
    yield "hidden.webp", b"RIFF" + struct.pack("<I", len(body)) + body


def _tiffs() -> Iterator[tuple[str, bytes]]:
    flood = zlib.compress(bytes(SIDE * SIDE // 8), 9)
    names = {"bits": 0x102, "samples": 0x115, "rows": 0x116, "wide": 0x142, "high": 0x143}
    names |= {"photometric": 0x106, "planes": 0x11C}

    def tiff(width: int, height: int, *, big: bool = False, **changes: int) -> bytes:
        """The data begin at byte 2000."""
        strips = {0x111: (4, 2000), 0x117: (4, len(flood)), 0x116: (4, height)}
        tiles = {0x144: (4, 2000), 0x145: (4, len(flood))}
        fields = {0x100: (4, width), 0x101: (4, height), 0x102: (3, 1), 0x103: (3, 8)}
        fields |= {0x106: (3, 1), 0x115: (3, 1)} | (tiles if "wide" in changes else strips)
        for name, value in changes.items():
            fields[names[name]] = (4, value)
        data = struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16) if big else b"II*\0\x08\0\0\0"
        data += struct.pack("<Q" if big else "<H", len(fields))
        for tag, (kind, value) in sorted(fields.items()):
            data += struct.pack("<HHQQ" if big else "<HHII", tag, kind, 1, value)
        return data.ljust(2000, b"\0") + flood

    yield "whole.tiff", tiff(SIDE, SIDE)
    yield "whole.big.tiff", tiff(SIDE, SIDE, big=True)
    yield "tile.tiff", tiff(8, 8, wide=32_768, high=32_768)
    yield "rows.tiff", tiff(8, 8, rows=2**31)
    yield "samples.tiff", tiff(900, 1000, samples=65_535, bits=8)
    yield "deep.tiff", tiff(900, 1000, bits=65_535)
    planes = {"bits": 32, "samples": 3, "photometric": 2, "planes": 2}
    yield "whole.planes.tiff", tiff(SIDE, SIDE, **planes)  # type: ignore[arg-type]
    yield "tile.planes.tiff", tiff(8, 8, wide=32_768, high=32_768, **planes)  # type: ignore[arg-type]
    yield "rows.planes.tiff", tiff(8, 8, rows=2**31, **planes)  # type: ignore[arg-type]
    yield "whole.deep.big.tiff", tiff(SIDE, SIDE, big=True, bits=64)


def _jpegs() -> Iterator[tuple[str, bytes]]:
    white = encode_jpeg(_white(), QUALITY=1)
    yield "whole.jpg", white
    metadata = segment(0xE1, bytes(65_000)) * 100
    yield "filling.jpg", insert(white, b"\xff" * 2**20, metadata)
    wide = encode_jpeg(np.full((64, 64, 3), 255, np.uint8), PROGRESSIVE=1)
    at = wide.index(b"\xff\xc2") + 5
    yield "progressive.jpg", wide[:at] + struct.pack(">HH", 65_000, 65_000) + wide[at + 4 :]


def _jpeg2000s() -> Iterator[tuple[str, bytes]]:
    data, begin = _encode(".jp2", image(48, 64)), b"\xff\x4f\xff\x51"
    start = data.index(begin)
    size = start + len(begin)
    (length,) = struct.unpack_from(">H", data, size)

    def sized(side: int, tile: int, parts: int = 3) -> bytes:
        sides = side, side, 0, 0, tile, tile, 0, 0
        head = struct.pack(">HH8IH", 38 + 3 * parts, 0, *sides, parts) + b"\x07\1\1" * parts
        return data[start:size] + head + data[size + length :]

    huge = sized(60_000, 60_000)
    yield "whole.j2k", huge
    yield "tiles.j2k", sized(990, 4)
    yield "parts.j2k", sized(990, 990, 16_384)
    decoy = begin + struct.pack(">HHIIII", 41, 0, 1, 1, 0, 0)
    box = struct.pack(">I4s", len(decoy) + 8, b"free") + decoy
    yield "decoy.jp2", data[:12] + box + data[12:start] + huge


def _avifs() -> Iterator[tuple[str, bytes]]:
    data = _encode(".avif", _white(5000), cv2.IMWRITE_AVIF_SPEED, 10)
    yield "whole.avif", data
    yield "hidden.avif", data.replace(struct.pack(">II", 5000, 5000), struct.pack(">II", 64, 64))


def _plain() -> Iterator[tuple[str, bytes]]:
    """Formats with hardly any compression: the header declares more than there is."""
    bmp = struct.pack("<IIIIiiHHIIIIII", 0, 0, 62, 40, 60_000, 60_000, 1, 8, 1, 0, 0, 0, 2, 0)
    yield "rle.bmp", b"BM" + bmp + bytes(8) + b"\xff\0" * 1000 + b"\0\1"
    down = struct.pack("<IIIIiiHH", 0, 0, 54, 40, 60_000, -60_000, 1, 24)
    yield "down.bmp", b"BM" + down + bytes(100)
    fields = struct.pack("<IiiHHIIiiII", 40, 60_000, 60_000, 1, 32, 3, 0, 0, 0, 0, 0)
    masks = struct.pack("<III", 0xFF, 0xFF00, 0xFF0000)
    yield "whole.fields.bmp", b"BM" + struct.pack("<III", 0, 0, 66) + fields + masks + bytes(100)
    for kind in "2356":
        yield f"whole{kind}.pnm", f"P{kind} 60000 60000 1023\n".encode() + b"1 " * 2**22
    yield "digits.pnm", b"P2 900 1000 1023 " + b"1" * 2**24
    for kind in "123456":
        yield f"plain{kind}.pnm", f"P{kind} 60000 60000 255\n".encode() + bytes(100)
    pam = "P7\n# WIDTH 1\n# HEIGHT 1\nWIDTH {}\nHEIGHT {}\nDEPTH {}\nMAXVAL 255\n{}ENDHDR\n"
    alpha = pam.format(60000, 60000, 4, "TUPLTYPE RGB_ALPHA\n")
    yield "comment.pam", alpha.encode() + bytes(100)
    yield "blank.pnm", b"P6" + b" " * 2**24
    yield "lines.hdr", b"#?RADIANCE" + b"\n-Y " * 2**22
    yield "depth.pam", pam.format(900, 1000, 65000, "").encode() + bytes(100)
    yield "colour.pfm", b"PF\n60000 60000\n-1.0\n" + bytes(100)
    yield "plain.ras", struct.pack(">8I", 0x59A66A95, 60_000, 60_000, 24, 0, 1, 0, 0) + bytes(100)
    yield "zeros.jpg", bytes(2**26)


def _videos() -> Iterator[tuple[str, bytes]]:
    huge = encode_jpeg(_white(), QUALITY=1)
    with TemporaryDirectory() as folder:

        def film(suffix: str) -> bytes:
            path = Path(folder) / f"v.{suffix}"
            number_video.write(path, 3, code=number_video.CODES[suffix])
            return path.read_bytes()

        small, film4 = film("avi"), film("mp4")
    width, height = number_video.SIZE
    sides = struct.pack("<II", width, height)
    sides4 = struct.pack(">HH", width, height)
    yield "declared.avi", small.replace(sides, struct.pack("<II", 60_000, 60_000))
    at = small.index(b"\xff\xd8\xff")
    (length,) = struct.unpack_from("<I", small, at - 4)
    yield "frame.avi", small[: at - 4] + struct.pack("<I", len(huge)) + huge + small[at + length :]
    raw = small.replace(b"MJPG", b"DIB ").replace(sides, struct.pack("<ii", 16_000, 16_000))
    yield "raw.avi", raw
    yield "declared.mp4", film4.replace(sides4, struct.pack(">HH", 60_000, 60_000))
    sizes = b"stsz" + struct.pack(">II", 0, 2**31 - 1)
    yield "samples.mp4", film4.replace(b"stsz" + bytes(8), sizes)


def read(path: Path) -> str:
    """Read all items of a file, and tell what came out."""
    from detcli.config.inputs import InputOptions
    from detcli.core.errors import InputError
    from detcli.source.sources import Sources

    said = set()
    with Sources([str(path)], InputOptions(max_pixels=MAX_PIXELS)) as sources:
        for item in sources:
            try:
                said.add(f"image {item.load().size}")
            except InputError as error:
                said.add(str(error))
    return "; ".join(sorted(said))


def _measure(path: Path | None) -> tuple[float, str]:
    """MiB that a process of its own takes to read a file, and what came out."""
    inlet, outlet = os.pipe()
    process = os.fork()
    if not process:
        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESSES, MAX_ADDRESSES))
        said = "" if path is None else read(path)
        os.write(outlet, said.encode()[:4000])
        os._exit(0)
    os.close(outlet)
    with os.fdopen(inlet, "rb") as answer:
        outcome = answer.read().decode()
    _, status, usage = os.wait4(process, 0)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    if status != 0:
        outcome = f"ended with {status}"
    return usage.ru_maxrss / unit, outcome


def main() -> None:
    """Read every file in the folder that is named."""
    import detcli.source.video  # noqa: F401 - loaded once, for all
    from detcli.core.opencv import silence_opencv

    silence_opencv()
    base, _ = _measure(None)
    results = {}
    for file in sorted(Path(sys.argv[1]).iterdir()):
        mib, outcome = _measure(file)
        results[file.name] = (mib - base, outcome)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
