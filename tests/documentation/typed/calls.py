"""Calls that the documentation names, which type checkers take or refuse; nothing runs them.

`docs/check_examples.py` checks them by mypy and pyright. A line that is to be refused is ignored
with its reason, and mypy finds an ignored line that it does not refuse.
"""

from pathlib import Path

import numpy as np

from detcli import (
    DecodeError,
    Detections,
    Detector,
    DeviceOptions,
    Inputs,
    Line,
    Region,
    Settings,
    Tiling,
    Tracking,
    Watched,
    Zone,
    predict,
    top_k,
)


def settings_are_taken() -> None:
    """Texts, numbers, iterables and mappings stand for the values of settings."""
    Settings(tile=640)
    Settings(tile="640,overlap=0.3", region="0,0.5,1,1", nms="none", names=Path("names.txt"))
    Settings(tile=Tiling(640, overlap=0.1), region=Region(0, 0.5, 1, 1), nms=0.5, imgsz=640)
    Settings(region=[0, 0.5, 1, 1], box_format="xyxy")
    Settings(classes=["car", 2], class_conf={"car": 0.5})
    Settings(classes={"car"}, class_conf=[("car", 0.5), (2, 0.1)])
    Settings(classes=(name for name in ["car"]), class_conf={0: 0.5})


def other_options_are_taken() -> None:
    """So do those for inputs, tracks, zones and lines."""
    corners = [(0, 0), (1, 0), (1, 1)]
    Watched(track="bytetrack", zones=["door=0,0,1,0,1,1", Zone("hall", corners)])
    Watched(track=Tracking("bytetrack", conf=0.4), zone="door=0,0,1,0,1,1")
    Watched(lines=Line("gate", [(0, 0), (1, 1)]), ignore=["0,0,1,0,1,1"])
    Zone("hall", np.array(corners))
    Inputs(every=1, start=2, end=3.5)
    DeviceOptions(workers=2)


def results_have_types(detector: Detector) -> None:
    """An image gives Detections, and a list of images a list of them."""
    several: list[Detections] = detector(["a.jpg", Path("b.jpg")])
    single: Detections = detector(Path("a.jpg").read_bytes(), conf=0.5)
    of_lists = Detections([[0, 0, 1, 1]], [0.5], [0], ["car"], track_id=[1])
    both = Detections.concat([*several, single, of_lists])
    best_scores, _ = top_k(both.score, 2, sorted=False)
    best_scores.tolist()
    with predict(["pics"], detector, inputs=Inputs(), watched=Watched()) as records:
        for record in records:
            if isinstance(record.error, DecodeError):
                record.error.hint.strip()


def detectors_are_opened() -> None:
    """A detector takes settings by name, too."""
    Detector(Path("m.onnx"), "cpu", conf=0.4, classes=["car"], tile=640, options=DeviceOptions())


def what_is_refused(detector: Detector) -> None:
    """Values of other types, misspelled names, and later arguments without a name."""
    Settings(conf="0.4")  # type: ignore[arg-type]
    Settings(imgsz=(640, 640))  # type: ignore[arg-type]
    Settings(classes=0)  # type: ignore[arg-type]
    Settings(0.4)  # type: ignore[call-arg, arg-type]
    Inputs(strict=True)  # type: ignore[call-arg]
    Detector("m.onnx", cnof=0.4)  # type: ignore[call-arg]
    Detector("m.onnx", "cpu", Settings())  # type: ignore[call-arg]
    predict("film.mp4", "m.onnx")  # type: ignore[arg-type]
    predict("film.mp4", detector, Inputs())  # type: ignore[call-arg]
    DeviceOptions().check("cpu")  # type: ignore[attr-defined]
