"""Records made by hand, and the report on two files of them."""

import json

from report_schemas import validator

from detcli.data.record import box_of, name_of

SHA = "ab" * 32
SETTINGS = {"model": "m", "model_sha256": SHA, "conf": 0.25, "max_det": 300, "tile": None}


def box(score=0.9, column=0, shift=0.0, class_id=0, name="person"):
    """A box of 40 pixels, 100 from the next column."""
    left = 100 * column + shift
    sides = {"x1": left, "y1": 0, "x2": left + 40, "y2": 40}
    return {"class_id": class_id, "class_name": name, "score": score, **sides}


def record(source, *boxes, **more_fields):
    fields = {"schema_version": 2, "source": source, "index": 0, "width": 400, "height": 40}
    fields |= {"detections": list(boxes), "model": "m", "device": "cpu"}
    return fields | more_fields


def error(source, message="torn"):
    failure = {"type": "DecodeError", "message": message, "hint": ""}
    return {"schema_version": 2, "source": source, "index": 0, "error": failure}


def report_of(process):
    """The report that verify printed as JSON."""
    report = json.loads(process.stdout)
    validator("verify").validate(report)
    return report


def of_version_1(record):
    """A record as version 1 had it."""
    fields = record | {"schema_version": 1, "source": name_of(record)}
    for name in ("input", "source_bytes"):
        fields.pop(name, None)
    if "detections" in fields:
        names = ("class_id", "class_name", "score")
        detections = []
        for detection in fields["detections"]:
            columns = {name: detection[name] for name in names}
            detections.append(columns | {"box": list(box_of(detection))})
        fields["detections"] = detections
    return fields
