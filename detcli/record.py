"""Record: what one input gave, detections or an error; what every sink writes."""

from dataclasses import dataclass
from typing import Any

from detcli.detections import Detections
from detcli.errors import DetcliError
from detcli.geometry import Image

SCHEMA_VERSION = 1


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """What one input gave.

    Attributes:
        source: The input as its user named it.
        index: Its place among the inputs, from 0.
        model: Name of the model.
        device: Where it ran.
        image: The picture, `(H, W, 3)` uint8 BGR; None if there is an error.
        detections: What was found; None if there is an error.
        error: Why there are no detections; None if there are.
    """

    source: str
    index: int
    model: str
    device: str
    image: Image | None = None
    detections: Detections | None = None
    error: DetcliError | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form, see detcli/schemas/predict.json; boxes to 1/100 pixel."""
        head = {"schema_version": SCHEMA_VERSION, "source": self.source, "index": self.index}
        if self.image is None or self.detections is None:
            return {**head, "error": error_to_json(self.error or DetcliError("no result"))}
        height, width = self.image.shape[:2]
        rows = [
            {
                "class_id": class_id,
                "class_name": name,
                "score": round(score, 4),
                "box": [round(float(side), 2) for side in box],
            }
            for box, score, class_id, name in self.detections
        ]
        return {
            **head,
            "width": width,
            "height": height,
            "detections": rows,
            "model": self.model,
            "device": self.device,
        }


def error_to_json(error: DetcliError) -> dict[str, str]:
    """Type, message and hint of an error."""
    return {"type": type(error).__name__, "message": str(error), "hint": error.hint}
