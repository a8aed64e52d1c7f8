"""Records made by hand, and the report on two files of them."""

import json

from detcli.data.record import box_of, name_of

SHA = "ab" * 32
SETTINGS = {"model": "m", "model_sha256": SHA, "conf": 0.25, "max_det": 300, "tile": None}


def box(score=0.9, column=0, shift=0.0, class_id=0, name="person"):
    """A box of 40 pixels, 100 from the next column."""
    left = 100 * column + shift
    sides = {"x1": left, "y1": 0, "x2": left + 40, "y2": 40}
    return {"class_id": class_id, "class_name": name, "score": score, **sides}


def record(source, *boxes, **more):
    fields = {"schema_version": 2, "source": source, "index": 0, "width": 400, "height": 40}
    return {**fields, "detections": [*boxes], "model": "m", "device": "cpu", **more}


def error(source, message="torn"):
    failure = {"type": "DecodeError", "message": message, "hint": ""}
    return {"schema_version": 2, "source": source, "index": 0, "error": failure}


def report_of(done):
    return json.loads(done.stdout)


def of_version_1(record):
    """A record as version 1 had it."""
    fields = record | {"schema_version": 1, "source": name_of(record)}
    for name in ("input", "source_bytes"):
        fields.pop(name, None)
    if "detections" in fields:
        names = ("class_id", "class_name", "score")
        fields["detections"] = [
            {name: one[name] for name in names} | {"box": [*box_of(one)]}
            for one in fields["detections"]
        ]
    return fields
