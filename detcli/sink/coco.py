"""COCO results: what pycocotools' `loadRes` reads."""

import json
from collections.abc import Iterator
from typing import Any

from detcli.detections import Detections
from detcli.errors import UsageError
from detcli.record import Record
from detcli.sink import Output
from detcli.sink.coco_numbers import Numbers


class CocoSink:
    """One JSON array of `{"image_id", "category_id", "bbox": [x, y, width, height], "score"}`.

    Each picture's part is written at once, so that memory does not grow with what is found.
    """

    def __init__(self, output: Output, numbers: Numbers) -> None:
        """Begin the array.

        Args:
            output: Where it goes.
            numbers: Tells the ids of pictures and classes.
        """
        self._output = output
        self._numbers = numbers
        self._given: set[int] = set()
        self._before = "[\n"

    def write(self, record: Record) -> None:
        """Write the elements of one picture.

        Raises:
            UsageError: The picture has no id, or that of an earlier one.
            OutputError: The disk is full, say.
        """
        if record.detections is None:
            return
        image_id = self._numbers.image_id(record)
        if image_id in self._given:
            raise UsageError(
                f"{record.source} has the COCO image id {image_id}, as a picture before it",
                "name each picture once; --coco-images FILE gives ids other than those in names",
            )
        self._given.add(image_id)
        elements = [json.dumps(one) for one in self._elements(image_id, record.detections)]
        if elements:
            self._output.write(self._before + ",\n".join(elements))
            self._before = ",\n"

    def close(self) -> None:
        """Close the array, and make the file visible."""
        try:
            self._output.write("[]\n" if self._before == "[\n" else "\n]\n")
        finally:
            self._output.commit()

    def _elements(self, image_id: int, detections: Detections) -> Iterator[dict[str, Any]]:
        """Each detection of a picture, but for classes that have no category."""
        for box, score, class_id, _ in detections:
            category_id = self._numbers.category_id(class_id, detections.names)
            if category_id is not None:
                left, top, right, bottom = map(float, box)
                sides = left, top, right - left, bottom - top
                yield {
                    "image_id": image_id,
                    "category_id": category_id,
                    "bbox": [round(side, 3) for side in sides],
                    "score": round(score, 6),
                }
