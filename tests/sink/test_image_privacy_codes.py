"""Codes in real photographs, hidden in the boxes of the bundled model."""

import csv

import cv2
import numpy as np
import zxingcpp

from detcli import Detector
from detcli.sink.image import WAYS, hidden


def test_codes_of_real_photographs_cannot_be_read(shared):
    """In the boxes of the bundled model, which is where a user would hide them."""
    folder = shared("data/codes-photos")
    with (folder / "labels.tsv").open() as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["kind"] == "photo"]
    tried = 0
    with Detector("codes", "cpu") as detector:
        for row in rows[:: len(rows) // 30]:
            image = cv2.imread(str(folder / row["file"]))
            boxes = detector(image).xyxy
            read = [code for code in zxingcpp.read_barcodes(image) if is_in(code.position, boxes)]
            tried += len(read)
            for way in WAYS if read else ():
                left = {code.text for code in zxingcpp.read_barcodes(hidden(image, boxes, way))}
                assert left & {code.text for code in read} == set(), row["file"]
    assert tried > 10


def is_in(position, boxes):
    """Whether the middle of a code that a reader found is in a box."""
    corners = (position.top_left, position.top_right, position.bottom_left, position.bottom_right)
    x, y = np.mean([(at.x, at.y) for at in corners], axis=0)
    return any(left <= x <= right and top <= y <= bottom for left, top, right, bottom in boxes)
