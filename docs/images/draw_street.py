"""Draw a street scene in which a COCO detector finds four objects, and write it as a JPEG."""

import sys
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

Colour = Sequence[float]
Image = npt.NDArray[np.uint8]

WIDTH, HEIGHT, SCALE = 960, 640, 3
WHITE, CREAM, INK = (250, 250, 248), (240, 236, 226), (26, 28, 32)
GLASS, STEEL = ((40, 54, 66), (96, 124, 138)), ((122, 126, 130), (72, 76, 80))
LETTERS = {  # strokes as pairs of digits, across and down, in a cell of six by nine
    "S": ["62 50 10 01 03 14 55 66 68 59 19 08"],
    "T": ["00 60", "30 39"],
    "O": ["10 50 61 68 59 19 08 01 10"],
    "P": ["09 00 50 61 64 55 05"],
}


class Canvas:
    """An image drawn at SCALE times its size; colours are given as red, green, blue."""

    def __init__(self) -> None:
        """Start with a black image."""
        self.image = np.zeros((HEIGHT * SCALE, WIDTH * SCALE, 3), np.uint8)

    def polygon(self, points: npt.ArrayLike, top: Colour, bottom: Colour | None = None) -> None:
        """Fill a polygon with a colour, or with a vertical gradient between two colours."""
        corners = np.round(np.asarray(points) * SCALE).astype(np.int32)
        left, upper, width, height = cv2.boundingRect(corners)
        rows = np.arange(max(upper, 0), min(upper + height, HEIGHT * SCALE))
        window = np.s_[rows[0] : rows[-1] + 1, max(left, 0) : left + width]
        mask = np.zeros(self.image.shape[:2], np.uint8)
        cv2.fillPoly(mask, [corners], 1)
        share = ((rows - upper) / height)[:, None, None]
        fill = np.asarray(top) * (1 - share) + np.asarray(bottom or top) * share
        self.image[window] = np.where(mask[window][..., None], fill[..., ::-1], self.image[window])

    def box(
        self,
        left: float,
        upper: float,
        right: float,
        lower: float,
        top: Colour,
        bottom: Colour | None = None,
        radius: float = 0,
    ) -> None:
        """Fill a rectangle whose corners may be rounded."""
        across, down = np.cos(np.radians(range(0, 360, 6))), np.sin(np.radians(range(0, 360, 6)))
        x = np.where(across > 0, right - radius, left + radius) + radius * across
        y = np.where(down > 0, lower - radius, upper + radius) + radius * down
        self.polygon(np.stack([x, y], 1), top, bottom)

    def disc(
        self,
        x: float,
        y: float,
        radius: float,
        top: Colour,
        bottom: Colour | None = None,
        squash: float = 1.0,
        sides: int = 90,
    ) -> None:
        """Fill a circle, an ellipse or a regular polygon that stands on a side."""
        angles = (np.arange(sides) + 0.5) * 2 * np.pi / sides
        circle = np.stack([np.cos(angles), squash * np.sin(angles)], 1)
        self.polygon(np.array([x, y]) + radius * circle, top, bottom)

    def line(self, points: npt.ArrayLike, colour: Colour, thickness: float) -> None:
        """Draw a chain of strokes with round ends."""
        corners = np.round(np.asarray(points) * SCALE).astype(np.int32)
        width = max(1, round(thickness * SCALE))
        cv2.polylines(
            self.image,
            [corners],
            isClosed=False,
            color=colour[::-1],
            thickness=width,
            lineType=cv2.LINE_AA,
        )

    def finish(self, generator: np.random.Generator) -> Image:
        """Return the image at its own size, softened and with a little grain."""
        small = cv2.resize(self.image, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
        grain = generator.normal(0, 2, (HEIGHT, WIDTH, 1))
        return np.clip(cv2.GaussianBlur(small, (3, 3), 0.5) + grain, 0, 255).astype(np.uint8)


def draw_background(canvas: Canvas, generator: np.random.Generator) -> None:
    """Draw sky, clouds, a row of houses, the pavement and the road."""
    canvas.box(0, 0, WIDTH, 470, (92, 158, 214), (226, 234, 232))
    clouds = [(300, 70, 34), (345, 60, 44), (395, 74, 30), (650, 110, 26), (690, 104, 32)]
    for x, y, radius in clouds:
        canvas.disc(x, y, radius, WHITE, (226, 236, 244), squash=0.6)
    tints = [(186, 158, 134), (150, 158, 168), (196, 178, 150), (164, 140, 130), (172, 176, 170)]
    for index, tint in enumerate(tints):
        left, roof = index * 200 - 20, 150 + int(generator.integers(0, 90))
        canvas.box(left, roof, left + 200, 480, tint, [value - 28 for value in tint])
        canvas.box(left - 4, roof - 10, left + 204, roof, [value - 50 for value in tint])
        for x in range(left + 22, left + 170, 44):
            for y in range(roof + 26, 430, 64):
                canvas.box(x - 3, y - 3, x + 27, y + 41, (232, 228, 218))
                canvas.box(x, y, x + 24, y + 38, (84, 106, 128), (130, 156, 172))
    canvas.box(0, 470, WIDTH, 516, (176, 172, 166), (196, 192, 184))
    canvas.box(0, 516, WIDTH, 526, (140, 138, 134))
    canvas.box(0, 526, WIDTH, HEIGHT, (84, 86, 92), (62, 64, 70))
    for x in range(-40, WIDTH, 160):
        canvas.polygon([(x, 590), (x + 90, 590), (x + 80, 602), (x - 12, 602)], (224, 222, 208))


def draw_stop_sign(canvas: Canvas, x: float, y: float, radius: float) -> None:
    """Draw a stop sign on its pole."""
    canvas.box(x - 6, y, x + 6, 512, (150, 154, 158), (112, 116, 120))
    canvas.disc(x, y, radius, (140, 140, 140), sides=8)
    canvas.disc(x, y, radius * 0.98, WHITE, (232, 232, 230), sides=8)
    canvas.disc(x, y, radius * 0.91, (206, 30, 40), (172, 18, 28), sides=8)
    for index, letter in enumerate("STOP"):
        corner = (x + (index * 0.395 - 0.73) * radius, y - 0.29 * radius)
        for stroke in LETTERS[letter]:
            cells = np.array([[*map(int, cell)] for cell in stroke.split()])
            canvas.line(corner + cells * (0.046, 0.0645) * radius, WHITE, radius * 0.085)


def draw_clock(canvas: Canvas, x: float, y: float, radius: float) -> None:
    """Draw a street clock that shows ten past ten."""
    canvas.box(x - 8, y, x + 8, 500, (52, 62, 60), (34, 40, 40))
    canvas.box(x - 22, 484, x + 22, 512, (52, 62, 60), (30, 36, 36), 5)
    canvas.disc(x, y, radius, (58, 70, 68), (28, 34, 34))
    canvas.disc(x, y, radius * 0.87, (254, 253, 246), (236, 233, 222))
    rays: list[tuple[float, float, float, float]] = [
        (minute, 0.77, 0.81, 1.2) for minute in range(60)
    ]
    rays += [(hour * 5, 0.66, 0.81, 4) for hour in range(12)]
    rays += [(305 / 6, -0.12, 0.42, 6), (10, -0.12, 0.64, 4)]  # the hands
    for minute, inner, outer, thickness in rays:
        way = radius * np.array([np.sin(minute * np.pi / 30), -np.cos(minute * np.pi / 30)])
        canvas.line([(x, y) + way * inner, (x, y) + way * outer], INK, thickness)
    canvas.disc(x, y, radius * 0.07, INK)


def draw_traffic_light(canvas: Canvas, x: float, y: float, radius: float) -> None:
    """Draw a traffic light that shows red; x and y are the centre of its middle lamp."""
    canvas.box(x - 7, y, x + 7, 512, *STEEL)
    half, tall = radius * 1.5, radius * 3.95
    canvas.box(x - half, y - tall, x + half, y + tall, (48, 50, 52), (24, 26, 28), radius * 0.4)
    for index, lamp in enumerate([(255, 64, 52), (84, 66, 18), (16, 62, 42)]):
        centre = y + (index - 1) * radius * 2.5
        canvas.disc(x, centre - 3, radius * 1.14, (10, 10, 12))
        canvas.disc(x, centre, radius, lamp, [value * 0.75 for value in lamp])
        glint = [min(value + 50, 255) for value in lamp]
        canvas.disc(x - radius * 0.3, centre - radius * 0.4, radius * 0.2, glint)


def draw_bus(canvas: Canvas, left: float, upper: float, width: float, height: float) -> None:
    """Draw a bus seen from its side."""
    right, lower = left + width, upper + height
    canvas.disc((left + right) / 2, lower + 24, width * 0.52, (44, 46, 50), squash=0.04)
    canvas.box(left + 60, upper - 9, left + 150, upper + 10, (206, 206, 204), radius=4)
    canvas.box(left, upper, right, lower, (196, 44, 40), (150, 22, 26), 16)
    canvas.box(left, upper + 14, right, upper + 22, CREAM)
    canvas.box(left, lower - 46, right, lower - 38, CREAM)
    canvas.box(left + 8, upper + 28, right - 2, upper + 92, INK, radius=6)
    for start in np.linspace(left + 12, right - 104, 6)[:-1]:
        canvas.box(start, upper + 32, start + width * 0.137, upper + 46, *GLASS, 3)
        canvas.box(start, upper + 48, start + width * 0.137, upper + 88, *GLASS, 4)
    canvas.box(right - 96, upper + 28, right - 40, lower - 8, INK, radius=3)
    for start in (right - 93, right - 67):
        canvas.box(start, upper + 32, start + 24, lower - 12, *GLASS, 2)
    canvas.box(right - 34, upper + 32, right - 2, upper + 96, *GLASS, 4)
    canvas.line([(right - 4, upper + 24), (right + 12, upper + 28)], INK, 4)
    canvas.box(right + 8, upper + 26, right + 17, upper + 58, INK, radius=4)
    canvas.box(right - 14, lower - 30, right - 1, lower - 18, (255, 246, 200), radius=3)
    canvas.box(left + 1, lower - 32, left + 8, lower - 14, (255, 120, 60), radius=2)
    for x in (left + width * 0.2, left + width * 0.66):
        for size, shade in [(33, 16), (27, 40), (25, 24), (15, 170), (11, 120), (4, 60)]:
            canvas.disc(x, lower, size, (shade, shade, shade + 4))


def main() -> None:
    """Write the scene to the path named on the command line."""
    generator = np.random.default_rng(7)
    canvas = Canvas()
    draw_background(canvas, generator)
    draw_clock(canvas, 440, 190, 78)
    draw_traffic_light(canvas, 830, 210, 30)
    draw_bus(canvas, 270, 390, 450, 176)
    draw_stop_sign(canvas, 150, 215, 88)
    path = sys.argv[1] if len(sys.argv) > 1 else "scene.jpg"
    if not cv2.imwrite(path, canvas.finish(generator), [cv2.IMWRITE_JPEG_QUALITY, 88]):
        raise SystemExit(f"cannot write {path}")


if __name__ == "__main__":
    main()
