"""Draw a shelf with price labels, and a table with a board of markers and pucks.

Usage: python docs/images/draw_codes.py shelf.jpg table.jpg
"""

import sys

import cv2
import numpy as np
import numpy.typing as npt
import zxingcpp

Image = npt.NDArray[np.uint8]

HEIGHT, WIDTH = 720, 1280
WOOD, STEEL, PAPER, INK = (120, 150, 180), (150, 145, 140), (245, 248, 248), (40, 36, 34)  # BGR
CARTONS = ((90, 120, 190), (150, 110, 70), (100, 150, 110), (70, 150, 200), (130, 90, 130))
PRODUCTS = 10
BOARD = (4, 5)  # rows and columns of markers
PUCKS = ((820, 140), (1010, 250), (850, 410), (1060, 520))  # left, top


def symbol(text: str, kind: zxingcpp.BarcodeFormat, module: int) -> Image:
    """A symbol, `(H, W)`, black on white, with its quiet zone; bars are one row."""
    made = zxingcpp.create_barcode(text, kind)
    cells = np.array(zxingcpp.write_barcode_to_image(made, scale=1))
    return np.kron(cells, np.ones((module, module), np.uint8))


def put(image: Image, drawn: Image, left: int, top: int) -> None:
    """Lay a grey drawing on an image."""
    height, width = drawn.shape
    image[top : top + height, left : left + width] = drawn[:, :, None]


def seen(image: Image, corners: list[list[int]]) -> Image:
    """The image as a camera sees it that has its corners, clockwise from top left, there."""
    height, width = image.shape[:2]
    whole = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    view = cv2.getPerspectiveTransform(whole, np.array(corners, np.float32))
    moved = cv2.warpPerspective(image, view, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(cv2.GaussianBlur(moved, (0, 0), 0.6), np.uint8)


def shelf() -> Image:
    """Two rows of cartons, each above its price label with an EAN-13."""
    image = np.full((HEIGHT, WIDTH, 3), STEEL, np.uint8)
    for number in range(PRODUCTS):
        row, column = divmod(number, PRODUCTS // 2)
        left, top = 20 + 252 * column, 20 + 360 * row
        cv2.rectangle(image, (left, top), (left + 232, top + 216), CARTONS[number % 5], cv2.FILLED)
        cv2.rectangle(image, (left, top + 226), (left + 232, top + 336), PAPER, cv2.FILLED)
        digits = f"20990{number + 11:02d}12345"
        bars = symbol(digits + check_digit(digits), zxingcpp.BarcodeFormat.EAN13, 2)
        put(image, np.repeat(bars[bars.shape[0] // 2][None], 56, 0), left + 5, top + 272)
        price = f"{number + 1}.{number * 7 % 10}9"
        cv2.putText(image, price, (left + 14, top + 262), INK, cv2.FontFace("sans"), 30, 700)
    return seen(image, [[10, 40], [1250, 4], [1270, 716], [40, 650]])


def check_digit(digits: str) -> str:
    """The last digit of an EAN-13."""
    total = sum(int(digit) * (3 if place % 2 else 1) for place, digit in enumerate(digits))
    return str(-total % 10)


def table() -> Image:
    """A board of ArUco markers, and pucks with Data Matrix symbols."""
    image = np.full((HEIGHT, WIDTH, 3), WOOD, np.uint8)
    cv2.rectangle(image, (40, 60), (740, 640), PAPER, cv2.FILLED)
    markers = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_5X5_100)
    for number in range(BOARD[0] * BOARD[1]):
        row, column = divmod(number, BOARD[1])
        drawn = np.asarray(cv2.aruco.generateImageMarker(markers, number, 98), np.uint8)
        put(image, drawn, 76 + 132 * column, 90 + 140 * row)
    for number, (left, top) in enumerate(PUCKS):
        cv2.circle(image, (left + 70, top + 70), 92, (60, 60, 64), cv2.FILLED, cv2.LINE_AA)
        drawn = symbol(f"PUCK-{number + 1:02d}", zxingcpp.BarcodeFormat.DataMatrix, 6)
        turn = cv2.getRotationMatrix2D((70, 70), 17 * number, 1)
        label = np.full((140, 140), PAPER[0], np.uint8)
        side = drawn.shape[0]
        begin = (140 - side) // 2
        label[begin : begin + side, begin : begin + side] = drawn
        turned = cv2.warpAffine(label, turn, (140, 140), borderValue=PAPER)
        round_label = np.zeros((140, 140), np.uint8)
        cv2.circle(round_label, (70, 70), 68, 255, cv2.FILLED)
        part = image[top : top + 140, left : left + 140]
        part[round_label > 0] = np.asarray(turned)[round_label > 0][:, None]
    return seen(image, [[120, 20], [1170, 50], [1270, 700], [10, 690]])


def main(shelf_path: str, table_path: str) -> None:
    """Write the images."""
    cv2.imwrite(shelf_path, shelf())
    cv2.imwrite(table_path, table())


if __name__ == "__main__":
    main(*sys.argv[1:])
