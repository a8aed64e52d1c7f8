"""Draw a video of codes that travel on two belts, out of the demonstration image of the model.

Usage: python docs/images/draw_belt.py belt.mp4
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "models/codes/demo.jpg"

SIZE = (360, 640)  # height, width
RATE = 10
FRAMES = 50

# The part of the image x1, y1, x2, y2, where it begins, and its speed in pixels a frame.
PARCELS = (
    ((490, 106, 641, 264), (-80, 20), (12, 0)),
    ((898, 160, 997, 260), (-260, 45), (12, 0)),
    ((697, 302, 969, 482), (640, 175), (-12, 0)),
    ((706, 640, 780, 715), (960, 215), (-12, 0)),
)


def frames() -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]]:
    """Yield each frame, `(H, W, 3)` uint8 BGR, and the `(N, 4)` boxes of the parcels in it."""
    demo = np.asarray(cv2.imread(str(DEMO)))
    height, width = SIZE
    for number in range(FRAMES):
        image = np.full((height, width, 3), 70, np.uint8)
        image[10:165] = image[170:350] = 110
        boxes = []
        for (left, top, right, bottom), begin, speed in PARCELS:
            x, y = (start + step * number for start, step in zip(begin, speed, strict=True))
            part = demo[top:bottom, left:right]
            x1, x2 = max(x, 0), min(x + part.shape[1], width)
            if x1 < x2:
                image[y : y + part.shape[0], x1:x2] = part[:, x1 - x : x2 - x]
            boxes.append((x, y, x + part.shape[1], y + part.shape[0]))
        yield image, np.array(boxes, np.float32)


def main(path: str) -> None:
    """Write the video."""
    writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"mp4v"), RATE, SIZE[::-1])
    for image, _ in frames():
        writer.write(image)
    writer.release()


if __name__ == "__main__":
    main(sys.argv[1])
