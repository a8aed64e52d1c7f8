"""What detcli finds with files of other families, against what the families' own code finds.

../shared/families holds small detectors with random weights, exported by the families' own
packages. Each comes with its family's own answers on four images.

    python -m tests.families

runs all of them and writes the table in tests/families.md; `test_real_families.py` fails where it
is stale.
"""

import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from detcli import Detector, Settings
from detcli.core.errors import ModelError

FOLDER = Path(__file__).parents[2] / "shared/families"
PAGE = Path(__file__).with_suffix(".md")
TABLE = re.compile("(<!-- families -->\n).*?(<!-- end of families -->)", re.DOTALL)
HEADER = """
| file | exporter | read as | layout | preprocessing from | class names from | found |
| --- | --- | --- | --- | --- | --- | --- |
"""
CONFIDENCE = 0.3
MARGIN = 0.05
"""Detections whose score is nearer to the confidence than this may be found or not."""


@dataclass(frozen=True, slots=True)
class Result:
    """How far detcli's detections with a file are those of the family's own code.

    Attributes:
        line: The file's line of the table.
        expected: How many detections the family's own code finds, clearly above the confidence.
        matched: How many of these detcli finds.
        extra: How many others it finds, clearly above the confidence.
        floor: The share that has to be found: with random weights, a network's answers change with
            the rounding of its input.
    """

    line: str
    expected: int
    matched: int
    extra: int
    floor: float

    @property
    def agrees(self):
        """Whether what was found is what the family's own code finds."""
        has_few_extra = self.extra <= max(2, (1.05 - self.floor) * self.expected)
        return self.matched >= self.floor * self.expected and has_few_extra


def described(folder=FOLDER):
    """What is known of each file, by its name."""
    entry_of = {}
    for path in folder.glob("*.json"):
        entry = json.loads(path.read_text(encoding="utf-8"))
        entry_of[entry["name"]] = entry
    return dict(sorted(entry_of.items()))


def measure(entry, folder=FOLDER):
    """Run a file on the images that its family's own answers are known for."""
    cells = [entry["name"], entry["exporter"]]
    try:
        # Duplicates are suppressed as they were for the family's own answers.
        settings = Settings(conf=CONFIDENCE, nms=(entry.get("nms") or {}).get("iou"))
        detector = Detector(folder / entry["file"], "cpu", settings=settings)
    except ModelError as error:
        refused = str(error).partition(": ")[2].partition(". Inputs")[0]
        cells += [f"refused: {refused.partition(':')[0]}", "-", "-", "-", "-"]
        return Result(f"| {' | '.join(cells)} |", 0, 0, 0, 0)

    expected = matched = extra = 0
    answers_by_image = entry["reference"].get("pictures", {})
    with detector:
        for name, answers in answers_by_image.items():
            image = cv2.imread(str(folder.parent / "data" / name))
            counts = compared(detector(image), answers["detections"])
            expected += counts[0]
            matched += counts[1]
            extra += counts[2]

    contract = detector.contract
    agreement = "nothing to compare with"
    if answers_by_image:
        agreement = f"{matched} of {expected}"
    if extra:
        agreement += f", {extra} more"
    names = contract.names_origin.partition(",")[0]
    cells += [contract.family, contract.layout, settled(contract), names, agreement]
    other_kernel = entry.get("check", {}).get("other_kernel") or 1
    floor = min(0.95, 0.95 * other_kernel)
    return Result(f"| {' | '.join(cells)} |", expected, matched, extra, floor)


def settled(contract):
    """The parts of the preprocessing by what settled each."""
    parts = defaultdict(list)
    for part, source in contract.preprocessing_sources:
        parts[source].append(part)
    if len(parts) == 1:
        return next(iter(parts))
    phrases = []
    for source, parts_of_source in parts.items():
        phrases.append(f"{', '.join(parts_of_source)}: {source}")
    return "; ".join(phrases)


def compared(ours, theirs):
    """How many detections are expected, how many of these are matched, and how many others."""
    expected = 0
    matched = 0
    is_free = np.ones(len(ours), bool)
    for answer in theirs:
        if answer["score"] < CONFIDENCE + MARGIN:
            continue
        expected += 1
        distance = np.abs(ours.xyxy - answer["box"]).max(axis=1)
        is_near = (distance <= 3) | (overlap(ours.xyxy, np.array(answer["box"])) >= 0.7)
        is_of_class = ours.class_id == answer["class"]
        has_score = np.abs(ours.score - answer["score"]) <= 2 * MARGIN
        candidates = np.flatnonzero(is_free & is_near & is_of_class & has_score)
        if candidates.size:
            is_free[candidates[distance[candidates].argmin()]] = False
            matched += 1
    extra = (ours.score[is_free] > CONFIDENCE + MARGIN).sum()
    return expected, matched, int(extra)


def overlap(boxes, box):
    """Intersection over union of boxes (N, 4) with a box (4,)."""
    sides = np.minimum(boxes[:, 2:], box[2:]) - np.maximum(boxes[:, :2], box[:2])
    common = sides.clip(0).prod(axis=1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod()
    shares: npt.NDArray[Any] = common / (areas - common + 1e-9)
    return shares


def main():
    """Write the table."""
    lines = []
    for name, entry in described().items():
        result = measure(entry)
        lines.append(result.line)
        if not result.agrees:
            sys.exit(f"{name}: {result}")
    table = f"{HEADER}{chr(10).join(lines)}\n\n"
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda old: old[1] + table + old[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
