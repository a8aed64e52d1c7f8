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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from detcli import Detections, Detector, Inputs, Record, Settings, predict
from detcli.analytics import Watcher
from detcli.config.shapes import Line
from detcli.config.values import Tracker, Tracking
from detcli.config.watched import Watched
from detcli.data.geometry import overlap

TRUTH = Path(__file__).parents[1] / "analytics/truth"

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
    for name, (labelled_ranges, line, counted_by_eye) in CLIPS.items():
        truth = read_mot(TRUTH / f"{name}.txt")
        frames = []
        for first, last in labelled_ranges:
            frames += range(first, last + 1)
        followers = {}
        for tracker in Tracker:
            followers[f"detcli {tracker}"] = ours(tracker, line)
        if importlib.util.find_spec("ultralytics"):
            for kind in PEERS:
                followers[f"Ultralytics {kind}"] = theirs(kind)
        tracks, crossed = follow(options.clips / f"{name}.mp4", options.model, followers)
        for follower, boxes in tracks.items():
            cells = [name, follower] + score(truth, boxes, frames)
            if follower.startswith("detcli"):
                for counts in (crossed[follower], counted_by_eye):
                    cells.append(f"{counts['left']}, {counts['right']}")
            else:
                cells += ["-", "-"]
            print("|", " | ".join(cells), "|")


def follow(
    clip: Path, model: Path, followers: dict[str, Follow], inputs: Inputs | None = None
) -> tuple[dict[str, dict], dict[str, Counter]]:
    """What each follower says: boxes by frame, from 1, and track; and crossings by their side."""
    tracks: dict[str, dict] = {}
    crossed: dict[str, Counter] = {}
    for name in followers:
        tracks[name] = defaultdict(dict)
        crossed[name] = Counter()
    for record in detections(clip, model, inputs or Inputs()):
        for name, watch in followers.items():
            followed = watch(record)
            for number, box in zip(followed.track_id.tolist(), followed.xyxy, strict=True):
                if number > 0:
                    tracks[name][record.origin.frame + 1][number] = box
            if followed.crossed is not None:
                for crossings in followed.crossed:
                    for _, side in crossings:
                        crossed[name][side] += 1
    return tracks, crossed


def detections(clip: Path, model: Path, inputs: Inputs) -> Iterator[Record]:
    """The records of a clip, without hands."""
    with Detector(str(model), settings=Settings(conf=LOW)) as detector:
        for record in predict(str(clip), detector, inputs=inputs):
            detected = record.detections
            yield replace(record, detections=detected[detected.class_name != "person"])


def ours(tracker: Tracker, line: str) -> Follow:
    """A tracker of detcli."""
    lines = (Line.parse(f"gate={line}"),)
    watch = Watcher(Watched(track=Tracking(tracker, conf=HIGH), line=lines))
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
    rows = np.loadtxt(path, delimiter=",", usecols=range(6))
    for frame, number, left, top, width, height in rows:
        box = np.float32([left - 1, top - 1, left - 1 + width, top - 1 + height])  # type: ignore[arg-type]
        boxes[int(frame)][int(number)] = box
    return boxes


def score(truth: dict, tracks: dict, frames: list[int]) -> list[str]:
    """HOTA, MOTA and IDF1 in percent, and the number of identity switches."""
    from trackeval import metrics

    tracks_of_frames = [tracks.get(frame, {}) for frame in frames]
    truth_ids = ids_from_zero(truth.values())
    track_ids = ids_from_zero(tracks_of_frames)
    truth_ids_of_frames = []
    track_ids_of_frames = []
    similarities = []
    for frame, track_boxes in zip(frames, tracks_of_frames, strict=True):
        true_boxes = truth.get(frame, {})
        truth_ids_of_frames.append(ids_of(true_boxes, truth_ids))
        track_ids_of_frames.append(ids_of(track_boxes, track_ids))
        rows = np.array(list(true_boxes.values())).reshape(-1, 1, 4)
        columns = np.array(list(track_boxes.values())).reshape(1, -1, 4)
        similarities.append(overlap(rows, columns))
    data = {
        "gt_ids": truth_ids_of_frames,
        "tracker_ids": track_ids_of_frames,
        "similarity_scores": similarities,
        "num_gt_ids": len(truth_ids),
        "num_tracker_ids": len(track_ids),
        "num_gt_dets": len(np.concatenate(truth_ids_of_frames)),
        "num_tracker_dets": len(np.concatenate(track_ids_of_frames)),
        "num_timesteps": len(frames),
    }
    quiet = {"PRINT_CONFIG": False}
    hota = metrics.HOTA(quiet).eval_sequence(data)["HOTA"].mean()
    clear = metrics.CLEAR(quiet).eval_sequence(data)
    idf1 = metrics.Identity(quiet).eval_sequence(data)["IDF1"]
    return [
        f"{100 * hota:.1f}",
        f"{100 * clear['MOTA']:.1f}",
        f"{100 * idf1:.1f}",
        f"{clear['IDSW']:.0f}",
    ]


def ids_from_zero(boxes_of_frames: Iterable[dict[int, np.ndarray]]) -> dict[int, int]:
    """The numbers from 0 that TrackEval takes for those of the objects."""
    numbers: set[int] = set()
    for boxes in boxes_of_frames:
        numbers.update(boxes)
    return {number: index for index, number in enumerate(numbers)}


def ids_of(boxes: dict[int, np.ndarray], ids: dict[int, int]) -> np.ndarray:
    """TrackEval's numbers of the boxes of a frame."""
    return np.array([ids[number] for number in boxes], int)


if __name__ == "__main__":
    main()
