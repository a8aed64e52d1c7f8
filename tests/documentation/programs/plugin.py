"""A plugin of another program, which knows images as RGB arrays and labels as its own type."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from detcli import DetcliWarning, Detections, Detector, ModelError, Settings, UsageError

Pixels = npt.NDArray[np.uint8]


@dataclass
class Label:
    """What the other program calls a label: a box by its left top corner and size."""

    left: float
    top: float
    width: float
    height: float
    text: str


class Labeller(Protocol):
    """What the other program wants of a plugin."""

    # Takes the options of a user, and returns a message about what is wrong with them.
    def configure(self, options: dict[str, Any]) -> str: ...

    # Labels images.
    def label(self, images: Sequence[Pixels]) -> list[list[Label]]: ...


class DetcliLabeller:
    """The plugin: a detector that is opened when options are right."""

    def __init__(self) -> None:
        self._detector: Detector | None = None

    def configure(self, options: dict[str, Any]) -> str:
        """Open the model by the options; the message is empty if they are right."""
        try:
            settings = Settings(**options["settings"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DetcliWarning)
                self._detector = Detector(options["model"], device="cpu", settings=settings)
        except (UsageError, ModelError) as error:
            return f"{error}: {error.hint}"
        return ""

    def label(self, images: Sequence[Pixels]) -> list[list[Label]]:
        """Label images of red, green and blue."""
        assert self._detector is not None
        results = self._detector(images, channels="rgb")
        return [_labels_of(detections) for detections in results]


def _labels_of(detections: Detections) -> list[Label]:
    """Convert detections to labels."""
    labels = []
    for box, name in zip(detections.xywh.tolist(), detections.class_name, strict=True):
        left, top, width, height = box
        labels.append(Label(left, top, width, height, str(name)))
    return labels


labeller: Labeller = DetcliLabeller()
print(labeller.configure({"model": "yolov10n", "settings": {"conf": "high"}}))
print(labeller.configure({"model": "no.onnx", "settings": {"conf": 0.4}}))
print(labeller.configure({"model": "yolov10n", "settings": {"conf": 0.4, "tile": 640}}) == "")
street = np.asarray(Image.open("street.jpg").convert("RGB"))
for image_labels in labeller.label([street, street[:, ::-1].copy()]):
    print([label.text for label in image_labels])
