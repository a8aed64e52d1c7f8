"""Trackers on clips whose objects are known, beside Ultralytics' on the same detections.

    python tests/benchmarks/tracking.py MODEL CLIPS

CLIPS has the clips whose objects tests/analytics/truth/ knows. HOTA, MOTA and IDF1 are TrackEval's,
in all frames that are labelled. Needs `pip install "detcli[track]" trackeval`; where Ultralytics is
installed (`pip install ultralytics lap`), its trackers run as it configures them.

All get each frame's detections of a score above 0.1 and begin tracks from 0.25 on, which are the
defaults there. Hands, which the model calls persons, are left out.
"""

import argparse
import importlib.util
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from detcli import Detections, Detector, Inputs, Record, Settings, predict
from detcli.analytics import Watcher
from detcli.config.config import Watched
from detcli.config.shapes import Shape
from detcli.config.values import Tracker, Tracking
from detcli.data.geometry import overlap

TRUTH = Path(__file__).parents[1] / "watch/truth"

# The frames that are labelled, from 1; a line; and how many cross it to the left and to the right,
# which was counted by eye.
CLIPS = {
    "car-detection": ([(1, 377)], "0,0.5,1,0.5", {"left": 2, "right": 2}),
    "bottle-detection": ([(481, 550), (921, 1080)], "0,0.7,1,0.7", {"left": 4, "right": 4}),
}
LOW, HIGH = 0.1, 0.25
PEERS = "bytetrack", "botsort", "ocsort"

Follow = Callable[[Record], Detections]


def main() -> None:
    """Print a row for each clip and tracker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("clips", type=Path)
    options = parser.parse_args()
    print("| clip | tracker | HOTA | MOTA | IDF1 | switches | to the left, right | by eye |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, (frames, line, counted) in CLIPS.items():
        truth = read_mot(TRUTH / f"{name}.txt")
        wanted = [number for first, last in frames for number in range(first, last + 1)]
        followers = {f"detcli {tracker}": ours(tracker, line) for tracker in Tracker}
        if importlib.util.find_spec("ultralytics"):
            followers |= {f"Ultralytics {kind}": theirs(kind) for kind in PEERS}
        tracks, crossed = follow(options.clips / f"{name}.mp4", options.model, followers)
        for follower, found in tracks.items():
            count = crossed[follower]
            counts = [f"{one['left']}, {one['right']}" for one in (count, counted)]
            shown = counts if follower.startswith("detcli") else ["-", "-"]
            print("|", " | ".join([name, follower, *score(truth, found, wanted), *shown]), "|")


def follow(
    clip: Path, model: Path, followers: dict[str, Follow], inputs: Inputs | None = None
) -> tuple[dict[str, dict], dict[str, Counter]]:
    """What each follower says: boxes by frame, from 1, and track; and crossings by their side."""
    tracks = {name: defaultdict(dict) for name in followers}
    crossed = {name: Counter() for name in followers}
    for record in detections(clip, model, inputs or Inputs()):
        for name, watch in followers.items():
            found = watch(record)
            for number, box in zip(found.track_id.tolist(), found.xyxy, strict=True):
                if number > 0:
                    tracks[name][record.origin.frame + 1][number] = box
            for sides in () if found.crossed is None else found.crossed:
                crossed[name].update(side for _, side in sides)
    return tracks, crossed  # type: ignore[return-value]


def detections(clip: Path, model: Path, inputs: Inputs) -> Iterator[Record]:
    """The records of a clip, without hands."""
    with Detector(str(model), settings=Settings(conf=LOW)) as detector:
        for record in predict(str(clip), detector, inputs):
            found = record.detections
            yield replace(record, detections=found[found.class_name != "person"])


def ours(tracker: Tracker, line: str) -> Follow:
    """A tracker of detcli."""
    lines = (Shape.line(f"gate={line}"),)
    watch = Watcher(Watched(track=Tracking(tracker, HIGH), line=lines))
    return lambda record: watch(record).detections


def theirs(kind: str) -> Follow:
    """A tracker of Ultralytics, as it is configured there."""
    from ultralytics.engine.results import Boxes
    from ultralytics.trackers.track import TRACKER_MAP
    from ultralytics.utils import YAML
    from ultralytics.utils.checks import check_yaml

    tracker = TRACKER_MAP[kind](SimpleNamespace(**YAML.load(check_yaml(f"{kind}.yaml"))))

    def watch(record: Record) -> Detections:
        found = record.detections
        columns = [found.xyxy, found.score[:, None], found.class_id[:, None]]
        boxes = Boxes(np.hstack(columns).astype(np.float32), record.picture.size)  # type: ignore[arg-type]
        rows = tracker.update(boxes, record.picture.pixels).reshape(-1, 8)
        numbers = np.full(len(found), -1)
        numbers[rows[:, 7].astype(int)] = rows[:, 4]
        return replace(found, track_id=numbers)

    return watch


def read_mot(path: Path) -> dict[int, dict[int, np.ndarray]]:
    """The box x1, y1, x2, y2 of each object, by frame and number, both from 1."""
    boxes = defaultdict(dict)
    for frame, number, *sides in np.loadtxt(path, delimiter=",", usecols=range(6)):
        left, top, width, height = sides
        box = np.float32([left - 1, top - 1, left - 1 + width, top - 1 + height])  # type: ignore[arg-type]
        boxes[int(frame)][int(number)] = box
    return boxes


def score(truth: dict, tracks: dict, frames: list[int]) -> list[str]:
    """HOTA, MOTA and IDF1 in percent, and the number of identity switches."""
    from trackeval import metrics

    known = {number: place for place, number in enumerate({n for t in truth.values() for n in t})}
    given = {
        number: place
        for place, number in enumerate({n for frame in frames for n in tracks.get(frame, ())})
    }
    rows = [(truth.get(frame, {}), tracks.get(frame, {})) for frame in frames]
    data = {
        "gt_ids": [np.array([known[n] for n in here], int) for here, _ in rows],
        "tracker_ids": [np.array([given[n] for n in there], int) for _, there in rows],
        "similarity_scores": [
            overlap(
                np.array([*here.values()]).reshape(-1, 1, 4),
                np.array([*there.values()]).reshape(1, -1, 4),
            )
            for here, there in rows
        ],
        "num_gt_ids": len(known),
        "num_tracker_ids": len(given),
        "num_gt_dets": sum(len(here) for here, _ in rows),
        "num_tracker_dets": sum(len(there) for _, there in rows),
        "num_timesteps": len(rows),
    }
    quiet = {"PRINT_CONFIG": False}
    hota = metrics.HOTA(quiet).eval_sequence(data)["HOTA"].mean()
    clear = metrics.CLEAR(quiet).eval_sequence(data)
    idf1 = metrics.Identity(quiet).eval_sequence(data)["IDF1"]
    shown = [f"{100 * one:.1f}" for one in (hota, clear["MOTA"], idf1)]
    return [*shown, f"{clear['IDSW']:.0f}"]


if __name__ == "__main__":
    main()
