"""Compose the image that `make demo` shows: `python -m codes.demo demo.jpg`.

A desk with a ticket, a parcel label, the back of a carton and a marker, as a phone sees it.
The symbols hold made-up text: no personal data, no real addresses, no real products.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from codes import camera
from codes.surfaces import enlarged
from codes.symbols import Cells, Format, written
from codes.textures import Image, Mask, between, cloud
from codes.view import blend

HEIGHT, WIDTH = 810, 1080
INK = (38, 34, 32)  # BGR
QUALITY = 82
SEED = 11

# Pixels in the image: top left, top right, bottom right, bottom left.
Corners = tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]


class Sheet(NamedTuple):
    """A piece of paper and where its four corners lie on the desk, clockwise from top left."""

    image: Image
    corners: Corners


def blank_sheet(height: int, width: int, colour: tuple[int, int, int]) -> Image:
    """An empty sheet, `[height, width, 3]`."""
    image = np.empty((height, width, 3), np.uint8)
    image[:] = colour
    return image


def print_symbol(image: Image, cells: Cells, top_left: tuple[int, int], scale: int) -> None:
    """Print a symbol on a sheet, `scale` pixels a module; `top_left` is x and y."""
    _print_ink(image, enlarged(cells, scale), top_left)


def print_bars(
    image: Image, cells: Cells, top_left: tuple[int, int], scale: int, height: int
) -> None:
    """Print a linear code on a sheet, `height` pixels high; only its first row of cells counts."""
    first_row = enlarged(cells[:1], scale)[:1]
    _print_ink(image, np.repeat(first_row, height, axis=0), top_left)


def _print_ink(image: Image, ink_map: Mask, top_left: tuple[int, int]) -> None:
    """Colour the pixels of a sheet where the mask is set."""
    x, y = top_left
    height, width = ink_map.shape
    area = image[y : y + height, x : x + width]
    area[ink_map > 0] = INK


def print_text(
    image: Image, text: str, baseline: tuple[int, int], size: int, weight: int = 400
) -> None:
    """Print a line of text on a sheet; `baseline` is x and y of where its baseline begins."""
    cv2.putText(image, text, baseline, INK, cv2.FontFace("sans"), size, weight)


# The figures below are pixels of each sheet; a sheet's corners are pixels of the whole image.


def ticket() -> Sheet:
    """A train ticket with a PDF417 symbol and a QR Code."""
    image = blank_sheet(height=420, width=900, colour=(222, 238, 246))
    cv2.rectangle(image, (0, 0), (900, 70), (150, 96, 40), cv2.FILLED)
    white = (255, 255, 255)
    cv2.putText(image, "NORTHERN LINE", (30, 48), white, cv2.FontFace("sans"), 34, 700)

    for row, line in enumerate(("From  HARBOUR", "To  HILLTOP", "Coach 7   Seat 42")):
        print_text(image, line, baseline=(30, 125 + 46 * row), size=30, weight=500)
    print_text(image, "Sat 14 Nov   08:25   Adult single", baseline=(30, 268), size=22)

    pdf417 = written("NL|HARBOUR|HILLTOP|7|42|0825", Format.PDF417, options="columns=4")
    print_symbol(image, pdf417, top_left=(30, 292), scale=3)
    qr_code = written("https://example.org/t/7Q42", Format.QRCode, ec_level="M")
    print_symbol(image, qr_code, top_left=(640, 130), scale=8)
    return Sheet(image, corners=((70, 62), (655, 28), (672, 300), (96, 345)))


def parcel() -> Sheet:
    """A parcel label with Code 128 and Data Matrix."""
    image = blank_sheet(height=620, width=470, colour=(250, 250, 250))
    cv2.rectangle(image, (8, 8), (462, 612), INK, 3)
    print_text(image, "PARCEL", baseline=(28, 62), size=44, weight=700)
    for row, line in enumerate(("A. Reader", "1 Sample Street", "Exampletown")):
        print_text(image, line, baseline=(28, 120 + 36 * row), size=27)
    data_matrix = written("EX-2048-7731", Format.DataMatrix)
    print_symbol(image, data_matrix, top_left=(310, 40), scale=8)

    cv2.line(image, (8, 225), (462, 225), INK, 2)
    print_text(image, "1.2 kg   1 of 1", baseline=(28, 270), size=26)
    code_128 = written("0048215593", Format.Code128)
    print_bars(image, code_128, top_left=(46, 310), scale=4, height=190)
    print_text(image, "00 4821 5593", baseline=(130, 540), size=27)
    print_text(image, "Handle with care", baseline=(80, 590), size=22)
    return Sheet(image, corners=((722, 120), (1022, 158), (978, 560), (668, 505)))


def carton() -> Sheet:
    """The back of a carton with an EAN-13 and a line of small print."""
    image = blank_sheet(height=330, width=520, colour=(196, 226, 205))
    print_text(image, "OAT DRINK", baseline=(26, 56), size=40, weight=700)
    lines = ("Oats, water, a little salt.", "Shake well. Keep cool once open.", "1 litre")
    for row, line in enumerate(lines):
        print_text(image, line, baseline=(26, 98 + 30 * row), size=21)

    cv2.rectangle(image, (150, 180), (500, 320), (252, 252, 252), cv2.FILLED)
    ean_13 = written("209900012345", Format.EAN13)
    print_bars(image, ean_13, top_left=(182, 192), scale=3, height=98)
    print_text(image, "2 099000 123459", baseline=(196, 312), size=24)
    return Sheet(image, corners=((110, 430), (455, 408), (470, 632), (128, 668)))


def marker() -> Sheet:
    """A card with an ArUco marker."""
    image = blank_sheet(height=230, width=200, colour=(244, 246, 246))
    dictionary = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_4X4_50)
    marker_image = cv2.aruco.generateImageMarker(dictionary, 23, 6)
    cells = (marker_image < 128).astype(np.uint8)
    print_symbol(image, cells, top_left=(28, 24), scale=24)
    print_text(image, "id 23", baseline=(70, 210), size=24)
    return Sheet(image, corners=((520, 520), (650, 548), (622, 696), (490, 664)))


def tag() -> Sheet:
    """A small tag with a Micro QR Code."""
    import segno

    image = blank_sheet(height=150, width=260, colour=(240, 244, 250))
    cells = np.array(segno.make_micro("B7-113").matrix, np.uint8)
    print_symbol(image, cells, top_left=(20, 26), scale=6)
    print_text(image, "B7-113", baseline=(138, 70), size=27, weight=600)
    print_text(image, "shelf 4", baseline=(138, 108), size=24)
    return Sheet(image, corners=((700, 640), (868, 620), (880, 716), (710, 738)))


def desk(random: np.random.Generator) -> Image:
    """A wooden desk, its grain running across: a sine of stretched noise, and broad patches."""
    side = max(HEIGHT, WIDTH)
    rings = cv2.resize(cloud(random, side, coarse=3, octaves=4)[:, :90], (side, side))
    grain = (np.sin(rings * 46) + 1) / 2
    patches = cloud(random, side, coarse=90, octaves=2)
    field = (grain * 0.7 + patches * 0.3).astype(np.float32)
    wood = between(field, np.array([66, 98, 138]), np.array([92, 128, 168]))
    return np.ascontiguousarray(wood[:HEIGHT, :WIDTH])


def compose() -> Image:
    """The image, `[810, 1080, 3]`, BGR."""
    random = np.random.default_rng(SEED)
    image = desk(random)
    for sheet in (ticket(), parcel(), carton(), marker(), tag()):
        image = with_sheet(image, sheet)

    light = 1.12 - 0.4 * cloud(random, 32, coarse=2, octaves=2)
    image = camera.scaled(image, light.astype(np.float32))
    image = cv2.GaussianBlur(image, (0, 0), 0.6)
    return camera.with_grain(random, image, strength=4)


def with_sheet(image: Image, sheet: Sheet) -> Image:
    """The image with a sheet on it, and the sheet's shadow to its lower right."""
    height, width = sheet.image.shape[:2]
    source_corners = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    homography = cv2.getPerspectiveTransform(source_corners, np.array(sheet.corners, np.float32))

    # The sheet gets smaller, so it is blurred a little first, or fine lines would be jagged.
    blurred_sheet = cv2.GaussianBlur(sheet.image, (0, 0), 0.6)
    size = (WIDTH, HEIGHT)
    warped_sheet = cv2.warpPerspective(blurred_sheet, homography, size, flags=cv2.INTER_LINEAR)
    opaque = np.full((height, width), 255, np.uint8)
    alpha = cv2.warpPerspective(opaque, homography, size, flags=cv2.INTER_LINEAR)

    shifted_alpha = np.roll(alpha, (7, 5), axis=(0, 1))
    shadow = cv2.GaussianBlur(shifted_alpha, (0, 0), 6) // 2
    shaded_image = cv2.multiply(image, cv2.merge([255 - shadow] * 3), scale=1 / 255)
    return blend(shaded_image, warped_sheet, alpha)


def main() -> None:
    """Write the image to the path of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    cv2.imwrite(str(output), compose(), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])


if __name__ == "__main__":
    main()
