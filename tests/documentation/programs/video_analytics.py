"""Video analytics: who is in a zone in each second, and which tracks there are."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import cv2
import numpy.typing as npt

from detcli import Detector, Inputs, Line, Tracking, Watched, Zone, predict

watched = Watched(
    track=Tracking("bytetrack", conf=0.5),
    zones=[Zone("all", [(0, 0), (1, 0), (1, 1), (0, 1)])],
    lines=["gate=0,0.5,1,0.5", Line("exit", [(0.9, 0), (0.9, 1)])],
)


def frames(path: str) -> Iterator[npt.NDArray[Any]]:
    """Yield the frames of a video, as those of a camera's own library."""
    capture = cv2.VideoCapture(path)
    is_read, frame = capture.read()
    while is_read:
        yield frame
        is_read, frame = capture.read()


with Detector("yolov10n", device="cpu", conf=0.4) as detector:
    seconds_by_class: Counter[str] = Counter()
    inputs = Inputs(every=1)
    with predict("street.mp4", detector, inputs=inputs, watched=watched) as records:
        for record in records:
            assert record.detections is not None
            for place, class_name in record.detections.zones_and_lines():
                assert place == "all"
                seconds_by_class[class_name] += 1
    print("seconds in the zone:", dict(seconds_by_class))

    track_ids: set[int] = set()
    for record in detector.track(frames("street.mp4"), watched, fps=10):
        assert record.detections is not None
        frame_track_ids = record.detections.track_id
        assert frame_track_ids is not None
        track_ids.update(frame_track_ids[frame_track_ids > 0].tolist())
    print("tracks:", sorted(track_ids))
