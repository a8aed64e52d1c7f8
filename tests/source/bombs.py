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
import numpy as np
from made_jpegs import encode as encode_jpeg
from made_jpegs import insert, picture, segment

MAX_PIXELS = 1_000_000
MAX_ADDRESSES = 8 << 30
"""Bytes for each process: a bomb that works must not take the machine with it."""

SIDE = 8_000
"""Of the bombs that are complete pictures, as few bits a pixel as possible."""


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yield file names and contents."""
    yield from _pngs()
    yield from _gifs()
    yield from _webps()
    yield from _tiffs()
    yield from _jpegs()
    yield from _jpeg2000s()
    yield from _avifs()
    yield from _plain()
    yield from _videos()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _png(width: int, height: int, *chunks: bytes, bits: int = 1) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    row = bytes(1 + (width * bits + 7) // 8)
    packer = zlib.compressobj(1)
    pixels = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    parts = [_chunk(b"IHDR", header), *chunks, _chunk(b"IDAT", pixels), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _pngs() -> Iterator[tuple[str, bytes]]:
    yield "whole.png", _png(SIDE, SIDE)
    frame = struct.pack(">IIIIIHHBB", 0, SIDE, SIDE, 0, 0, 1, 1, 0, 0)
    control = _chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))
    yield "frame.apng.png", _png(8, 8, control, _chunk(b"fcTL", frame))
    flood = zlib.compress(bytes(2**27), 1)
    yield "text.png", _png(8, 8, *[_chunk(b"zTXt", b"x\0\0" + flood)] * 10)
    yield "pixels.png", _png(8, 8)[:33] + _chunk(b"IDAT", flood) + _chunk(b"IEND", b"")


def _gifs() -> Iterator[tuple[str, bytes]]:
    sound = cv2.imencode(".gif", picture(48, 64))[1].tobytes()
    size = struct.pack("<HH", 64, 48)
    huge = struct.pack("<HH", 60_000, 60_000)
    yield "canvas.gif", sound.replace(size, huge, 1)
    yield "frame.gif", sound[:6] + size + sound[10:].replace(size, huge)


def _webps() -> Iterator[tuple[str, bytes]]:
    white = np.full((SIDE, SIDE), 255, np.uint8)
    image = cv2.imencode(".webp", white, [cv2.IMWRITE_WEBP_QUALITY, 1])[1].tobytes()
    yield "whole.webp", image
    canvas = struct.pack("<4sII", b"VP8X", 10, 0) + (7).to_bytes(3, "little") * 2
    body = b"WEBP" + canvas + image[12:]
    yield "hidden.webp", b"RIFF" + struct.pack("<I", len(body)) + body


def _tiff(fields: dict[int, tuple[int, int]], data: bytes, *, big: bool = False) -> bytes:
    """Fields are tag: (type, value); `data` begins at byte 2000."""
    head = (
        struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16) if big else struct.pack("<2sHI", b"II", 42, 8)
    )
    directory = struct.pack("<Q" if big else "<H", len(fields))
    for tag, (kind, value) in sorted(fields.items()):
        directory += struct.pack("<HHQQ" if big else "<HHII", tag, kind, 1, value)
    return (head + directory).ljust(2000, b"\0") + data


def _tiffs() -> Iterator[tuple[str, bytes]]:
    flood = zlib.compress(bytes(SIDE * SIDE // 8), 9)

    def fields(width: int, height: int, **changes: int) -> dict[int, tuple[int, int]]:
        tags = {
            "bits": 0x102, "samples": 0x115, "rows": 0x116, "wide": 0x142, "high": 0x143,
        }  # fmt: skip
        where = {0x144: (4, 2000), 0x145: (4, len(flood))} if "wide" in changes else {
            0x111: (4, 2000), 0x117: (4, len(flood)), 0x116: (4, height)
        }  # fmt: skip
        plain = {0x100: (4, width), 0x101: (4, height), 0x102: (3, 1), 0x103: (3, 8), 0x106: (3, 1)}
        plain |= {0x115: (3, 1)} | where
        return plain | {tags[name]: (4, value) for name, value in changes.items()}

    yield "whole.tiff", _tiff(fields(SIDE, SIDE), flood)
    yield "whole.big.tiff", _tiff(fields(SIDE, SIDE), flood, big=True)
    yield "tile.tiff", _tiff(fields(8, 8, wide=32_768, high=32_768), flood)
    yield "rows.tiff", _tiff(fields(8, 8, rows=2**31), flood)
    yield "samples.tiff", _tiff(fields(900, 1000, samples=65_535, bits=8), flood)
    yield "deep.tiff", _tiff(fields(900, 1000, bits=65_535), flood)


def _jpegs() -> Iterator[tuple[str, bytes]]:
    white = encode_jpeg(np.full((SIDE, SIDE), 255, np.uint8), QUALITY=1)
    yield "whole.jpg", white
    yield "filling.jpg", insert(white, b"\xff" * 2**20, *[segment(0xE1, bytes(65_000))] * 100)
    wide = encode_jpeg(np.full((64, 64, 3), 255, np.uint8), PROGRESSIVE=1)
    at = wide.index(b"\xff\xc2") + 5
    yield "progressive.jpg", wide[:at] + struct.pack(">HH", 65_000, 65_000) + wide[at + 4 :]


def _jpeg2000s() -> Iterator[tuple[str, bytes]]:
    data = cv2.imencode(".jp2", picture(48, 64))[1].tobytes()
    codestream = data[data.index(b"\xff\x4f\xff\x51") :]
    size = codestream.index(b"\xff\x51") + 2

    def sized(width: int, height: int, tile: tuple[int, int], parts: int = 3) -> bytes:
        head = struct.pack(
            ">HHIIIIIIIIH", 38 + 3 * parts, 0, width, height, 0, 0, *tile, 0, 0, parts
        )
        (length,) = struct.unpack_from(">H", codestream, size)
        return codestream[:size] + head + b"\x07\1\1" * parts + codestream[size + length :]

    yield "whole.j2k", sized(60_000, 60_000, (60_000, 60_000))
    yield "tiles.j2k", sized(990, 990, (4, 4))
    yield "parts.j2k", sized(990, 990, (990, 990), 16_384)
    decoy = b"\xff\x4f\xff\x51" + struct.pack(">HHIIII", 41, 0, 1, 1, 0, 0)
    box = struct.pack(">I4s", len(decoy) + 8, b"free") + decoy
    huge = sized(60_000, 60_000, (60_000, 60_000))
    start = data.index(b"\xff\x4f\xff\x51")
    yield "decoy.jp2", data[:12] + box + data[12:start] + huge


def _avifs() -> Iterator[tuple[str, bytes]]:
    white = np.full((5000, 5000), 255, np.uint8)
    data = cv2.imencode(".avif", white, [cv2.IMWRITE_AVIF_SPEED, 10])[1].tobytes()
    huge, small = struct.pack(">II", 5000, 5000), struct.pack(">II", 64, 64)
    yield "whole.avif", data
    yield "hidden.avif", data.replace(huge, small)


def _plain() -> Iterator[tuple[str, bytes]]:
    """Formats with hardly any compression: the header declares more than there is."""
    yield (
        "rle.bmp",
        b"BM"
        + struct.pack("<IIIIiiHHIIIIII", 0, 0, 62, 40, 60_000, 60_000, 1, 8, 1, 0, 0, 0, 2, 0)
        + bytes(8)
        + b"\xff\0" * 1000
        + b"\0\1",
    )
    yield (
        "down.bmp",
        b"BM" + struct.pack("<IIIIiiHH", 0, 0, 54, 40, 60_000, -60_000, 1, 24) + bytes(100),
    )
    for kind in "123456":
        yield f"plain{kind}.pnm", f"P{kind} 60000 60000 255\n".encode() + bytes(100)
    yield (
        "comment.pam",
        b"P7\n# WIDTH 1\n# HEIGHT 1\nWIDTH 60000\nHEIGHT 60000\nDEPTH 4\nMAXVAL 255\n"
        b"TUPLTYPE RGB_ALPHA\nENDHDR\n" + bytes(100),
    )
    yield "blank.pnm", b"P6" + b" " * 2**24
    yield "lines.hdr", b"#?RADIANCE" + b"\n-Y " * 2**22
    yield "depth.pam", b"P7\nWIDTH 900\nHEIGHT 1000\nDEPTH 65000\nMAXVAL 255\nENDHDR\n" + bytes(100)
    yield "colour.pfm", b"PF\n60000 60000\n-1.0\n" + bytes(100)
    yield (
        "plain.ras",
        struct.pack(">IIIIIIII", 0x59A66A95, 60_000, 60_000, 24, 0, 1, 0, 0) + bytes(100),
    )
    yield "zeros.jpg", bytes(2**26)


def _videos() -> Iterator[tuple[str, bytes]]:
    huge = encode_jpeg(np.full((SIDE, SIDE), 255, np.uint8), QUALITY=1)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "v.avi"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
        for _ in range(3):
            writer.write(picture(48, 64))
        writer.release()
        small = path.read_bytes()
        path = path.with_suffix(".mp4")
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 48))
        for _ in range(3):
            writer.write(picture(48, 64))
        writer.release()
        film = path.read_bytes()
    sides, sides16 = struct.pack("<II", 64, 48), struct.pack("<ii", 64, 48)
    yield "declared.avi", small.replace(sides, struct.pack("<II", 60_000, 60_000))
    at = small.index(b"\xff\xd8\xff")
    (length,) = struct.unpack_from("<I", small, at - 4)
    yield "frame.avi", small[: at - 4] + struct.pack("<I", len(huge)) + huge + small[at + length :]
    raw = small.replace(b"MJPG", b"DIB ").replace(sides16, struct.pack("<ii", 16_000, 16_000))
    yield "raw.avi", raw
    yield (
        "declared.mp4",
        film.replace(struct.pack(">HH", 64, 48), struct.pack(">HH", 60_000, 60_000)),
    )
    yield (
        "samples.mp4",
        film.replace(b"stsz" + bytes(8), b"stsz" + struct.pack(">II", 0, 2**31 - 1)),
    )


def read(path: Path) -> str:
    """Read all items of a file, and tell what came out."""
    from detcli.core.errors import InputError
    from detcli.source.decode import DecodeOptions
    from detcli.source.loading import SourceOptions
    from detcli.source.sources import Sources

    said = set()
    options = SourceOptions(decode=DecodeOptions(max_pixels=MAX_PIXELS))
    with Sources([str(path)], options) as sources:
        for item in sources:
            try:
                said.add(f"picture {item.load().size}")
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
        said = answer.read().decode()
    _, status, usage = os.wait4(process, 0)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return usage.ru_maxrss / unit, said if status == 0 else f"ended with {status}"


def main() -> None:
    """Read every file in the folder that is named."""
    import detcli.source.video  # noqa: F401 - loaded once, for all
    from detcli.core.opencv import silence_opencv

    silence_opencv()
    base, _ = _measure(None)
    found = {}
    for file in sorted(Path(sys.argv[1]).iterdir()):
        mib, said = _measure(file)
        found[file.name] = (mib - base, said)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
