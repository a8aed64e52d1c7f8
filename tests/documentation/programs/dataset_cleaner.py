"""A data set cleaner: damaged files, boxes that are there twice, and labels in COCO's form."""

import json
from pathlib import Path

import numpy as np

from detcli import Detections, Detector, DeviceOptions, Inputs, predict

MAX_IOU = 0.9


def without_doubles(detections: Detections) -> Detections:
    """Leave out detections that overlap a better one, of any class."""
    is_double = np.any(np.triu(detections.iou(detections) > MAX_IOU, k=1), axis=0)
    return detections[~is_double]


labels = []
damaged = []
options = DeviceOptions(workers=2)
with Detector("yolov10n", device="cpu", options=options, class_conf={"car": 0.5}) as detector:
    for record in predict(Path("pics"), detector, inputs=Inputs(recursive=True)):
        if record.error is not None:
            damaged.append(f"{record.origin.source}: {record.error}")
        elif record.detections is not None:
            both = Detections.concat([record.detections, record.detections])
            kept = without_doubles(both.sort_by("score", descending=True))
            assert kept.sort_by("x1") == record.detections.sort_by("x1")
            small = kept[kept.area < 5000].sort_by("area")
            labels += small.to_coco(image_id=record.index)

Path("labels.json").write_text(json.dumps(labels))
print("damaged:", *damaged)
print("labels:", len(labels), labels[0]["bbox"])
