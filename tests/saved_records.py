"""Records made by hand, and the report on two files of them."""

import json

SHA = "ab" * 32
SETTINGS = {"model": "m", "model_sha256": SHA, "conf": 0.25, "max_det": 300, "tile": None}


def box(score=0.9, column=0, shift=0.0, class_id=0, name="person"):
    """A box of 40 pixels, 100 from the next column."""
    corners = [100 * column + shift, 0, 100 * column + 40 + shift, 40]
    return {"class_id": class_id, "class_name": name, "score": score, "box": corners}


def record(source, *boxes, **more):
    fields = {"schema_version": 1, "source": source, "index": 0, "width": 400, "height": 40}
    return {**fields, "detections": [*boxes], "model": "m", "device": "cpu", **more}


def error(source, message="torn"):
    failure = {"type": "DecodeError", "message": message, "hint": ""}
    return {"schema_version": 1, "source": source, "index": 0, "error": failure}


def report_of(done):
    return json.loads(done.stdout)
