"""Label Studio's tasks: a picture each, with a prediction to correct.

After https://labelstud.io/guide/predictions. The tags have the names of Label Studio's template for
object detection: `label` for RectangleLabels, `image` for Image.
"""

import json
from collections.abc import Iterator
from typing import Any

from detcli.errors import UsageError
from detcli.record import RecordJson
from detcli.sink import Encodable
from detcli.sink.json import JsonArray


class LabelStudioSink(JsonArray):
    """A JSON array with one task per picture; a failed input has none, as nobody could label it."""

    def write(self, record: Encodable) -> None:
        """Write a task.

        Raises:
            UsageError: It is a frame of a video, which has no picture of its own to show.
            OutputError: The task could not be written.
        """
        fields = record.to_json()
        if "detections" not in fields:
            return
        if "frame" in fields:
            raise UsageError(
                f"{fields['source']} is a video, and --format labelstudio takes pictures",
                "keep its frames with --save-dataset, and name that folder",
            )
        result = list(_regions(fields))
        prediction = {"model_version": fields["model"], "result": result}
        if result:  # the mean, by which Label Studio can sort tasks
            prediction["score"] = round(sum(one["score"] for one in result) / len(result), 4)
        task = {"data": {"image": fields["source"]}, "predictions": [prediction]}
        self.extend([json.dumps(task, ensure_ascii=False, allow_nan=False)])


def _regions(fields: RecordJson) -> Iterator[dict[str, Any]]:
    """A rectangle for each detection, in hundredths of the picture's sides."""
    width, height = fields["width"], fields["height"]
    for number, found in enumerate(fields["detections"]):
        left, top, right, bottom = found["box"]
        value = {
            "x": 100 * left / width,
            "y": 100 * top / height,
            "width": 100 * (right - left) / width,
            "height": 100 * (bottom - top) / height,
            "rotation": 0,
            "rectanglelabels": [found["class_name"]],
        }
        yield {
            "id": str(number),
            "type": "rectanglelabels",
            "from_name": "label",
            "to_name": "image",
            "original_width": width,
            "original_height": height,
            "image_rotation": 0,
            "score": found["score"],
            "value": value,
        }
