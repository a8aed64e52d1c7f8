"""Lines of text, drawn once with OpenCV's own fonts and reused at any size."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Cover = NDArray[Any]  # uint8, [H, W], 255 where ink is
Random = np.random.Generator

HEIGHT = 40  # of a stored line, in pixels
LINES = 240
LETTERS = np.array(list("aaabcdeeeeefghiiijklmnnnoooprrrssstttuuvwyzABCDEGHKLMNPRSTW"))
FIGURES = np.array(list("0123456789"))


class Lettering:
    """A store of text lines.

    Args:
        random: Where the words come from.
        fonts: Names of `cv2.FontFace` and the weights (100 to 800) to draw each with.
    """

    def __init__(self, random: Random, fonts: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        faces = [(cv2.FontFace(name), weight) for name, weights in fonts for weight in weights]
        self.lines = []
        for number in range(LINES):
            face, weight = faces[number % len(faces)]
            self.lines.append(_drawn(_words(random), face, weight))

    def line(  # noqa: PLR0913, PLR0917 - where and how large
        self, random: Random, cover: Cover, x: int, y: int, height: int, width: int
    ) -> None:
        """Draw a line of text into a cover, its top left at (x, y), cut at `width` pixels."""
        stored = self.lines[random.integers(len(self.lines))]
        scale = height / HEIGHT
        width = min(width, int(stored.shape[1] * scale), cover.shape[1] - x)
        height = min(height, cover.shape[0] - y)
        if width < 2 or height < 3 or x < 0 or y < 0:
            return
        source = stored[:, : max(int(width / scale), 1)]
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        area = cover[y : y + height, x : x + width]
        np.maximum(area, cv2.resize(source, (width, height), interpolation=method), out=area)


def _words(random: Random) -> str:
    count = int(random.integers(1, 12))
    words = []
    for _ in range(count):
        alphabet = FIGURES if random.random() < 0.2 else LETTERS
        words.append("".join(random.choice(alphabet, int(random.integers(1, 10)))))
    text = " ".join(words)
    return text.upper() if random.random() < 0.25 else text


def _drawn(text: str, face: cv2.FontFace, weight: int) -> Cover:
    cover = np.zeros((HEIGHT, 18 * len(text) + 60, 3), np.uint8)
    end, _ = cv2.putText(
        cover, text, (2, 30), (255, 255, 255), face, 30, weight, cv2.PUT_TEXT_ALIGN_LEFT
    )
    del end
    columns = np.flatnonzero(cover[..., 0].any(0))
    return np.ascontiguousarray(cover[:, : columns[-1] + 2 if len(columns) else 2, 0])
