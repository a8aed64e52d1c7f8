"""Compose the image that `make demo` shows: `python -m codes.demo demo.jpg`.

A desk with a ticket, a parcel label, the back of a carton and a marker, as a phone sees it.
The symbols hold made-up text: no personal data, no real addresses, no real products.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from codes import camera
from codes.surfaces import enlarged
from codes.symbols import Format, written
from codes.textures import Image, between, cloud
from codes.view import blend

HEIGHT, WIDTH = 810, 1080
INK = (38, 34, 32)  # BGR
QUALITY = 82
SEED = 11

Cells = NDArray[np.uint8]


class Sheet(NamedTuple):
    """A piece of paper and where its four corners lie on the desk, clockwise from top left."""

    picture: Image
    corners: tuple[tuple[int, int], ...]


def paper(height: int, width: int, colour: tuple[int, int, int]) -> Image:
    """An empty sheet, `[height, width, 3]`."""
    image = np.empty((height, width, 3), np.uint8)
    image[:] = colour
    return image


def put(image: Image, cells: Cells, place: tuple[int, int], scale: int, bars: int = 0) -> None:
    """Print a symbol, its top left at `place`; bars get a height in pixels."""
    cover = enlarged(cells[:1] if bars else cells, scale)
    if bars:
        cover = np.repeat(cover[:1], bars, 0)
    x, y = place
    area = image[y : y + cover.shape[0], x : x + cover.shape[1]]
    area[cover > 0] = INK


def say(image: Image, text: str, place: tuple[int, int], size: int, weight: int = 400) -> None:
    """Print a line of text, its baseline beginning at `place`."""
    cv2.putText(image, text, place, INK, cv2.FontFace("sans"), size, weight)


def ticket() -> Sheet:
    """A train ticket with a PDF417 symbol and a QR Code."""
    image = paper(420, 900, (222, 238, 246))
    cv2.rectangle(image, (0, 0), (900, 70), (150, 96, 40), cv2.FILLED)
    cv2.putText(image, "NORTHERN LINE", (30, 48), (255, 255, 255), cv2.FontFace("sans"), 34, 700)
    for row, line in enumerate(("From  HARBOUR", "To  HILLTOP", "Coach 7   Seat 42")):
        say(image, line, (30, 125 + 46 * row), 30, 500)
    say(image, "Sat 14 Nov   08:25   Adult single", (30, 268), 22)
    symbol = written("NL|HARBOUR|HILLTOP|7|42|0825", Format.PDF417, options="columns=4")
    put(image, symbol, (30, 292), 3)
    put(image, written("https://example.org/t/7Q42", Format.QRCode, ec_level="M"), (640, 130), 8)
    return Sheet(image, ((70, 62), (655, 28), (672, 300), (96, 345)))


def parcel() -> Sheet:
    """A parcel label with Code 128 and Data Matrix."""
    image = paper(620, 470, (250, 250, 250))
    cv2.rectangle(image, (8, 8), (462, 612), INK, 3)
    say(image, "PARCEL", (28, 62), 44, 700)
    for row, line in enumerate(("A. Reader", "1 Sample Street", "Exampletown")):
        say(image, line, (28, 120 + 36 * row), 27)
    put(image, written("EX-2048-7731", Format.DataMatrix), (310, 40), 8)
    cv2.line(image, (8, 225), (462, 225), INK, 2)
    say(image, "1.2 kg   1 of 1", (28, 270), 26)
    put(image, written("0048215593", Format.Code128), (46, 310), 4, bars=190)
    say(image, "00 4821 5593", (130, 540), 27)
    say(image, "Handle with care", (80, 590), 22)
    return Sheet(image, ((722, 120), (1022, 158), (978, 560), (668, 505)))


def carton() -> Sheet:
    """The back of a carton with an EAN-13 and a line of small print."""
    image = paper(330, 520, (196, 226, 205))
    say(image, "OAT DRINK", (26, 56), 40, 700)
    lines = ("Oats, water, a little salt.", "Shake well. Keep cool once open.", "1 litre")
    for row, line in enumerate(lines):
        say(image, line, (26, 98 + 30 * row), 21)
    cv2.rectangle(image, (150, 180), (500, 320), (252, 252, 252), cv2.FILLED)
    put(image, written("209900012345", Format.EAN13), (182, 192), 3, bars=98)
    say(image, "2 099000 123459", (196, 312), 24)
    return Sheet(image, ((110, 430), (455, 408), (470, 632), (128, 668)))


def marker() -> Sheet:
    """A card with an ArUco marker."""
    dictionary = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_4X4_50)
    image = paper(230, 200, (244, 246, 246))
    drawn = cv2.aruco.generateImageMarker(dictionary, 23, 6)
    put(image, (drawn < 128).astype(np.uint8), (28, 24), 24)
    say(image, "id 23", (70, 210), 24)
    return Sheet(image, ((520, 520), (650, 548), (622, 696), (490, 664)))


def tag() -> Sheet:
    """A small tag with a Micro QR Code."""
    import segno

    image = paper(150, 260, (240, 244, 250))
    put(image, np.array(segno.make_micro("B7-113").matrix, np.uint8), (20, 26), 6)
    say(image, "B7-113", (138, 70), 27, 600)
    say(image, "shelf 4", (138, 108), 24)
    return Sheet(image, ((700, 640), (868, 620), (880, 716), (710, 738)))


def desk(random: np.random.Generator) -> Image:
    """Wood, its grain running across."""
    side = max(HEIGHT, WIDTH)
    rings = cv2.resize(cloud(random, side, 3, 4)[:, :90], (side, side))
    field = ((np.sin(rings * 46) + 1) / 2 * 0.7 + cloud(random, side, 90, 2) * 0.3).astype(
        np.float32
    )
    wood = between(field, np.array([66, 98, 138]), np.array([92, 128, 168]))
    return np.ascontiguousarray(wood[:HEIGHT, :WIDTH])


def compose() -> Image:
    """The image, `[810, 1080, 3]`, BGR."""
    random = np.random.default_rng(SEED)
    image = desk(random)
    for sheet in (ticket(), parcel(), carton(), marker(), tag()):
        image = laid(image, sheet)
    shade = 1.12 - 0.4 * cloud(random, 32, 2, 2)
    image = camera.scaled(image, shade.astype(np.float32))
    image = cv2.GaussianBlur(image, (0, 0), 0.6)
    return camera.with_grain(random, image, 4)


def laid(image: Image, sheet: Sheet) -> Image:
    """The image with a sheet on it, and the sheet's shadow."""
    height, width = sheet.picture.shape[:2]
    flat = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    matrix = cv2.getPerspectiveTransform(flat, np.array(sheet.corners, np.float32))
    soft = cv2.GaussianBlur(sheet.picture, (0, 0), 0.6)
    warped = cv2.warpPerspective(soft, matrix, (WIDTH, HEIGHT), flags=cv2.INTER_LINEAR)
    full = np.full((height, width), 255, np.uint8)
    alpha = cv2.warpPerspective(full, matrix, (WIDTH, HEIGHT), flags=cv2.INTER_LINEAR)
    shadow = cv2.GaussianBlur(np.roll(alpha, (7, 5), (0, 1)), (0, 0), 6) // 2
    below = cv2.multiply(image, cv2.merge([255 - shadow] * 3), scale=1 / 255)
    return blend(below, warped, alpha)


def main() -> None:
    """Write the image to the path of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    cv2.imwrite(str(output), compose(), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])


if __name__ == "__main__":
    main()
