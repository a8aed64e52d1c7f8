# mypy: disable-error-code=arg-type
"""Images in every form of many formats, and what is right for each.

    python -m source.image_forms

decodes each twice, and prints a digest of the pixels or what the error says. Another process may
fill memory with other bytes before it is used (MALLOC_PERTURB_ of glibc).
"""

import hashlib
import io
import json
import struct
import sys
import zlib
from typing import NamedTuple

import numpy as np

HEIGHT, WIDTH = 80, 104  # no multiple of a tile's side
TILE = 64
Y, X = np.mgrid[:HEIGHT, :WIDTH]
RGB = np.stack([X * 255 // WIDTH, Y * 255 // HEIGHT, (X * 3 + Y * 2) % 256], -1).astype(np.uint8)
GREY = RGB[..., 0].copy()
ALPHA = ((X * 2 + Y * 3) % 256).astype(np.uint8)
BLACK_AND_WHITE = GREY > 99


class ImageForm(NamedTuple):
    """An image file, and its pixels in red, green and blue."""

    data: bytes
    expected: np.ndarray
    tolerance: int = 1


def colours_of_grey(grey):
    return np.repeat(np.asarray(grey, np.uint8)[..., None], 3, axis=-1)


# TIFF

TIFF_TYPES = "uint8 uint16 uint32 int32 uint64 float16 float32 float64 int8 int16".split()


def with_type(channels, name):
    """Bytes as values of another type, of which the largest, 255 or 1 is white."""
    if name == "uint16":
        return channels.astype(np.uint16) * 257
    if name.startswith("float"):
        return (channels / 255).astype(name)
    return channels.astype(name)


def tiff(values, photometric, **options):
    """The bytes of a TIFF that tifffile writes."""
    import tifffile

    file = io.BytesIO()
    tifffile.imwrite(file, values, photometric=photometric, metadata=None, **options)
    return file.getvalue()


def tiff_layouts():
    """Options of tifffile for how an image lies in its file, by a name."""
    return {
        "strips": {},
        "tiles": {"tile": (TILE, TILE)},
        "big endian": {"byteorder": ">"},
        "big": {"bigtiff": True},
        "big big endian": {"bigtiff": True, "byteorder": ">"},
        "lzw": {"compression": "lzw"},
        "deflate": {"compression": "zlib", "predictor": True},
        "deflate tiles": {"compression": "zlib", "predictor": True, "tile": (TILE, TILE)},
        "packbits": {"compression": "packbits"},
        "rows": {"rowsperstrip": 7},
    }


COMMON_TYPES = ("uint8", "uint16", "float32")  # that are made in all layouts
FEW_LAYOUTS = ("strips", "tiles", "big big endian")


def tiffs():
    """Grey and colours of every type, with any number of extra samples."""
    for type_name in TIFF_TYPES:
        for photometric in ("minisblack", "miniswhite", "rgb"):
            for extra_samples in ((), (0,), (1,), (2,), (2, 0)):
                for planes in ("contig", "separate"):
                    yield from tiffs_of(type_name, photometric, extra_samples, planes)


def tiffs_of(type_name, photometric, extra_samples, planes):
    channels = [GREY]
    expected = colours_of_grey(GREY)
    if photometric == "rgb":
        channels = [RGB[..., 0], RGB[..., 1], RGB[..., 2]]
        expected = RGB
    elif photometric == "miniswhite":
        expected = 255 - expected
    channels = channels + [ALPHA] * len(extra_samples)
    if len(channels) == 1 and planes == "separate":
        return
    options = {}
    if len(channels) > 1:
        options["planarconfig"] = planes
    if extra_samples:
        options["extrasamples"] = extra_samples
    axis = 0 if planes == "separate" else -1
    values = with_type(np.stack(channels, axis), type_name)
    if len(channels) == 1:
        values = values[..., 0]
    for layout, layout_options in tiff_layouts().items():
        if type_name not in COMMON_TYPES and layout not in FEW_LAYOUTS:
            continue
        name = f"tiff {type_name} {photometric} extra {extra_samples} {planes} {layout}"
        data = tiff(values, photometric, **options, **layout_options)
        yield name, ImageForm(data, expected)


def tiffs_of_other_interpretations():
    """Palettes, inks and the like."""
    random = np.random.default_rng(0)
    palette = random.integers(0, 65536, (3, 256)).astype(np.uint16)
    inks = np.dstack([RGB, ALPHA])
    black = ALPHA[..., None].astype(int)
    of_inks = (255 - RGB.astype(int)) * (255 - black) // 255
    for layout, options in {"strips": {}, "tiles": {"tile": (TILE, TILE)}}.items():
        data = tiff(GREY, "palette", colormap=palette, **options)
        yield f"tiff palette {layout}", ImageForm(data, (palette >> 8).T[GREY])
        data = tiff(BLACK_AND_WHITE, "minisblack", **options)
        yield f"tiff 1 bit {layout}", ImageForm(data, colours_of_grey(BLACK_AND_WHITE * 255))
        data = tiff(BLACK_AND_WHITE, "miniswhite", **options)
        negative = colours_of_grey(255 - BLACK_AND_WHITE * 255)
        yield f"tiff 1 bit miniswhite {layout}", ImageForm(data, negative)
        data = tiff(inks, "separated", **options)
        yield f"tiff cmyk {layout}", ImageForm(data, of_inks, 2)
        data = tiff(inks.astype(np.uint16) * 257, "separated", **options)
        yield f"tiff cmyk 16 bit {layout}", ImageForm(data, of_inks, 2)
        for bits in (2, 4, 10, 12, 14):
            shifted = GREY.astype(np.uint16) * (2**bits - 1) // 255
            stored = shifted.astype(np.uint8 if bits < 8 else np.uint16)
            shades = colours_of_grey(shifted * 255 // (2**bits - 1))
            data = with_bits(stored, bits, options)
            yield f"tiff {bits} bit {layout}", ImageForm(data, shades)
        for compression in ("zstd", "jpeg2000", "png", "lzma", "lerc"):
            data = tiff(RGB, "rgb", compression=compression, **options)
            yield f"tiff {compression} {layout}", ImageForm(data, RGB, 40)
        data = tiff(RGB, "linear_raw", **options)
        yield f"tiff linear raw {layout}", ImageForm(data, RGB)
        spectrum = np.dstack([GREY, RGB, ALPHA])
        data = tiff(spectrum, "minisblack", planarconfig="contig", **options)
        yield f"tiff of five bands {layout}", ImageForm(data, colours_of_grey(GREY))


def with_bits(values, bits, options):
    return tiff(values, "minisblack", bitspersample=bits, **options)


# PNM and PAM


def scaled(values, maximum):
    """Bytes as samples up to a maximum, and as the bytes that these samples are."""
    samples = (values.astype(int) * maximum + 127) // 255
    return samples, np.rint(samples * 255 / maximum).astype(np.uint8)


def text_of(samples):
    lines = []
    for row in samples.reshape(HEIGHT, -1):
        lines.append(" ".join(str(sample) for sample in row))
    return "\n".join(lines).encode() + b"\n"


def pnms():
    for maximum in (1, 15, 100, 254, 255, 256, 1023, 4095, 16383, 65534, 65535):
        sample_type = "u1" if maximum < 256 else ">u2"
        for colour_kind, values in ((0, GREY), (1, RGB)):
            samples, shades = scaled(values, maximum)
            if colour_kind == 0:
                shades = colours_of_grey(shades)
            header = f"{WIDTH} {HEIGHT}\n{maximum}\n".encode()
            binary = b"P%d\n" % (5 + colour_kind) + header + samples.astype(sample_type).tobytes()
            yield f"pnm binary {colour_kind} {maximum}", ImageForm(binary, shades)
            text = b"P%d\n# made here\n" % (2 + colour_kind) + header + text_of(samples)
            yield f"pnm text {colour_kind} {maximum}", ImageForm(text, shades)
    bits = np.packbits(~BLACK_AND_WHITE, axis=1).tobytes()
    expected = colours_of_grey(BLACK_AND_WHITE * 255)
    yield "pbm binary", ImageForm(b"P4\n%d %d\n" % (WIDTH, HEIGHT) + bits, expected)
    text = text_of((~BLACK_AND_WHITE).astype(int))
    yield "pbm text", ImageForm(b"P1\n%d %d\n" % (WIDTH, HEIGHT) + text, expected)


def pams():
    channels = {
        "GRAYSCALE": GREY[..., None],
        "GRAYSCALE_ALPHA": np.dstack([GREY, ALPHA]),
        "RGB": RGB,
        "RGB_ALPHA": np.dstack([RGB, ALPHA]),
        "BLACKANDWHITE": BLACK_AND_WHITE[..., None] * 255,
        "BLACKANDWHITE_ALPHA": np.dstack([BLACK_AND_WHITE * 255, ALPHA]),
    }
    for tuple_type, values in channels.items():
        maximums = (1,) if tuple_type.startswith("BLACK") else (1, 15, 255, 1023, 65535)
        for maximum in maximums:
            samples, shades = scaled(values, maximum)
            if samples.shape[-1] < 3:
                expected = colours_of_grey(shades[..., 0])
            else:
                expected = shades[..., :3]
            data = pam(samples, maximum, f"TUPLTYPE {tuple_type}\n")
            yield f"pam {tuple_type} {maximum}", ImageForm(data, expected)


def pam(samples, maximum, tuple_type):
    height, width, depth = samples.shape
    sample_type = "u1" if maximum < 256 else ">u2"
    header = f"WIDTH {width}\nHEIGHT {height}\nDEPTH {depth}\nMAXVAL {maximum}\n{tuple_type}"
    return f"P7\n{header}ENDHDR\n".encode() + samples.astype(sample_type).tobytes()


# BMP

FIVE_BITS = (0x7C00, 0x03E0, 0x001F, 0)
BMP_MASKS = {
    "555": (16, FIVE_BITS),
    "1555": (16, (0x7C00, 0x03E0, 0x001F, 0x8000)),
    "565": (16, (0xF800, 0x07E0, 0x001F, 0)),
    "4444": (16, (0x0F00, 0x00F0, 0x000F, 0xF000)),
    "BGRA": (32, (0xFF0000, 0xFF00, 0xFF, 0xFF000000)),
    "BGRx": (32, (0xFF0000, 0xFF00, 0xFF, 0)),
    "RGBA": (32, (0xFF, 0xFF00, 0xFF0000, 0xFF000000)),
    "RGBx": (32, (0xFF, 0xFF00, 0xFF0000, 0)),
    "xBGR": (32, (0xFF000000, 0xFF0000, 0xFF00, 0)),
    "ten bits": (32, (0x3FF00000, 0xFFC00, 0x3FF, 0)),
}


def bmp(pixels, bits, *, compression=0, masks=(), header_bytes=40, palette=b"", is_down=False):
    """A BMP of lines of bytes, from the top down."""
    lines = []
    for line in pixels if is_down else pixels[::-1]:
        data = line.tobytes()
        lines.append(data + bytes(-len(data) % 4))
    body = b"".join(lines)
    height = -HEIGHT if is_down else HEIGHT
    colours = len(palette) // 4
    info = struct.pack("<IiiHHI", header_bytes, WIDTH, height, 1, bits, compression)
    info += struct.pack("<IiiII", len(body), 2835, 2835, colours, 0)
    packed_masks = struct.pack(f"<{len(masks)}I", *masks)
    if header_bytes == 40:
        info += packed_masks
    else:
        info = (info + packed_masks).ljust(header_bytes, b"\0")
    start = 14 + len(info) + len(palette)
    return b"BM" + struct.pack("<III", start + len(body), 0, start) + info + palette + body


def masked(masks, bits):
    """Pixels of bit fields, and the colours that they are."""
    pixels = np.zeros((HEIGHT, WIDTH), np.uint64)
    shades = []
    channels = np.dstack([RGB, ALPHA])
    for channel, mask in enumerate(masks):
        if mask == 0:
            continue
        shift = (mask & -mask).bit_length() - 1
        samples, shade = scaled(channels[..., channel], mask >> shift)
        pixels |= samples.astype(np.uint64) << np.uint64(shift)
        shades.append(shade)
    return pixels.astype(f"<u{bits // 8}"), np.dstack(shades[:3])


def bmps():
    random = np.random.default_rng(1)
    palette = random.integers(0, 256, (256, 4)).astype(np.uint8)
    for is_down in (False, True):
        direction = "down" if is_down else "up"
        for header_bytes in (40, 52, 56, 108, 124):
            form = {"header_bytes": header_bytes, "is_down": is_down}
            for name, (bits, masks) in BMP_MASKS.items():
                pixels, expected = masked(masks, bits)
                masks_in_header = masks if header_bytes > 52 else masks[:3]
                data = bmp(pixels, bits, compression=3, masks=masks_in_header, **form)
                full_name = f"bmp fields {name} {header_bytes} {direction}"
                yield full_name, ImageForm(data, expected, 0)
            pixels, expected = masked(FIVE_BITS, 16)
            name = f"{header_bytes} {direction}"
            yield f"bmp 16 bits {name}", ImageForm(bmp(pixels, 16, **form), expected, 0)
            lines = RGB[..., ::-1].reshape(HEIGHT, -1)
            yield f"bmp 24 bits {name}", ImageForm(bmp(lines, 24, **form), RGB, 0)
            lines = np.dstack([RGB[..., ::-1], ALPHA]).reshape(HEIGHT, -1)
            yield f"bmp 32 bits {name}", ImageForm(bmp(lines, 32, **form), RGB, 0)
            data = bmp(GREY, 8, palette=palette.tobytes(), **form)
            yield f"bmp palette {name}", ImageForm(data, palette[GREY][..., 2::-1], 0)
    pixels, expected = masked(BMP_MASKS["RGBA"][1], 32)
    data = bmp(pixels, 32, compression=6, masks=BMP_MASKS["RGBA"][1])
    yield "bmp fields with alpha", ImageForm(data, expected, 0)


# Sun raster


def sun(depth, kind, lines):
    header = struct.pack(">8I", 0x59A66A95, WIDTH, HEIGHT, depth, lines.nbytes, kind, 0, 0)
    return header + lines.tobytes()


def suns():
    blue_first = RGB[..., ::-1]
    bits = np.packbits(~BLACK_AND_WHITE, axis=1)
    padded = np.pad(bits, ((0, 0), (0, bits.shape[1] % 2)))
    black_and_white = colours_of_grey(BLACK_AND_WHITE * 255)
    yield "sun 1 bit", ImageForm(sun(1, 1, padded), black_and_white, 0)
    yield "sun 8 bits", ImageForm(sun(8, 1, GREY), colours_of_grey(GREY), 0)
    yield "sun 24 bits", ImageForm(sun(24, 1, blue_first), RGB, 0)
    yield "sun 24 bits, old", ImageForm(sun(24, 0, blue_first), RGB, 0)
    yield "sun 24 bits, red first", ImageForm(sun(24, 3, RGB), RGB, 0)
    with_padding = np.dstack([ALPHA, blue_first])
    yield "sun 32 bits", ImageForm(sun(32, 1, with_padding), RGB, 0)


# PNG


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(lines, bits, colour_type, *chunks):
    """A PNG of lines of bytes, without filters."""
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, colour_type, 0, 0, 0)
    filtered = b""
    for line in lines:
        filtered += b"\0" + line.tobytes()
    parts = [png_chunk(b"IHDR", header)]
    parts.extend(chunks)
    parts.append(png_chunk(b"IDAT", zlib.compress(filtered)))
    parts.append(png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def packed(values, bits):
    """Lines of values of less than a byte."""
    as_bits = np.unpackbits(values.astype(np.uint8)[..., None], axis=-1)[..., 8 - bits :]
    return np.packbits(as_bits.reshape(HEIGHT, -1), axis=1)


def pngs():
    random = np.random.default_rng(2)
    palette = random.integers(0, 256, (256, 3)).astype(np.uint8)
    for bits in (1, 2, 4, 8):
        values = GREY >> (8 - bits)
        lines = packed(values, bits)
        shades = values.astype(int) * 255 // (2**bits - 1)
        transparent_grey = png_chunk(b"tRNS", b"\0\1")
        colours = png_chunk(b"PLTE", palette[: 2**bits].tobytes())
        transparent_entry = png_chunk(b"tRNS", b"\0")
        grey = colours_of_grey(shades)
        yield f"png grey {bits}", ImageForm(png(lines, bits, 0), grey, 0)
        data = png(lines, bits, 0, transparent_grey)
        yield f"png grey {bits} transparent", ImageForm(data, grey, 0)
        data = png(lines, bits, 3, colours)
        yield f"png palette {bits}", ImageForm(data, palette[values], 0)
        data = png(lines, bits, 3, colours, transparent_entry)
        yield f"png palette {bits} transparent", ImageForm(data, palette[values], 0)
    for bits, sample_type, factor in ((8, "u1", 1), (16, ">u2", 257)):
        channels = {
            2: (RGB, RGB),
            4: (np.dstack([GREY, ALPHA]), colours_of_grey(GREY)),
            6: (np.dstack([RGB, ALPHA]), RGB),
        }
        for colour_type, (values, expected) in channels.items():
            lines = (values.astype(int) * factor).astype(sample_type)
            data = png(lines, bits, colour_type)
            yield f"png type {colour_type} of {bits} bits", ImageForm(data, expected, 0)


# Formats that imagecodecs writes


def encoded_by_imagecodecs():
    import imagecodecs

    images = {"grey": (GREY, colours_of_grey(GREY)), "colours": (RGB, RGB)}
    for name, (values, expected) in images.items():
        for bits in (4, 8, 10, 12, 16):
            samples = values.astype(int) * (2**bits - 1) // 255
            stored = samples.astype(np.uint8 if bits <= 8 else np.uint16)
            data = imagecodecs.jpeg2k_encode(stored, level=0, bitspersample=bits, reversible=True)
            shades = (samples * 255 // (2**bits - 1)).astype(np.uint8)
            if name == "grey":
                shades = colours_of_grey(shades)
            yield f"jpeg 2000 {name} {bits}", ImageForm(data, shades, 2)
        signed = (values.astype(int) - 128).astype(np.int8)
        data = imagecodecs.jpeg2k_encode(signed, level=0, reversible=True)
        yield f"jpeg 2000 {name} with a sign", ImageForm(data, expected, 2)
    with_alpha = np.dstack([RGB, ALPHA])
    data = imagecodecs.jpeg2k_encode(with_alpha, level=0, reversible=True)
    yield "jpeg 2000 with alpha", ImageForm(data, RGB, 2)
    yield "webp", ImageForm(imagecodecs.webp_encode(RGB, lossless=True), RGB, 0)
    for bits in (8, 10, 12):
        samples = RGB.astype(int) * (2**bits - 1) // 255
        stored = samples.astype(np.uint8 if bits == 8 else np.uint16)
        data = imagecodecs.avif_encode(stored, level=100, bitspersample=bits, speed=10)
        yield f"avif {bits}", ImageForm(data, RGB, 4)


def pfms():
    for order, scale in (("<", "-1.0"), (">", "1.0")):
        for kind, values, expected in (("PF", RGB, RGB), ("Pf", GREY, colours_of_grey(GREY))):
            header = f"{kind}\n{WIDTH} {HEIGHT}\n{scale}\n".encode()
            samples = (values[::-1] / 255).astype(f"{order}f4")
            yield f"pfm {kind} {order}", ImageForm(header + samples.tobytes(), expected, 0)


KINDS = {
    "png": pngs,
    "imagecodecs": encoded_by_imagecodecs,
    "pfm": pfms,
    "tiff": tiffs,
    "other tiff": tiffs_of_other_interpretations,
    "pnm": pnms,
    "pam": pams,
    "bmp": bmps,
    "sun": suns,
}


def all_forms():
    """Every form, by its name."""
    forms = {}
    for kind in KINDS.values():
        forms.update(kind())
    return forms


def outcome(data):
    """A digest of the pixels of a file, or its error."""
    from detcli.core.errors import DecodeError
    from detcli.source.decode import load_bytes

    try:
        pixels = load_bytes(data).pixels
    except DecodeError as error:
        return str(error)
    return hashlib.sha256(pixels.tobytes()).hexdigest()


def main():
    from detcli.core.opencv import silence_opencv

    silence_opencv()
    outcomes = {}
    for name, form in all_forms().items():
        outcomes[name] = [outcome(form.data), outcome(form.data)]
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
