"""Times non-maximum suppression beside a loop over what is kept, and beside torchvision.

    python tests/benchmarks/suppression.py [--seconds 2]

Candidates gather around objects, as those of a one-to-many head do, and 300 are kept at most, as
by default. torchvision keeps all: its `batched_nms` has no limit. Before anything is timed, both
must keep the same boxes. Without torchvision, the loop alone is beside.
"""

import argparse

import numpy as np
from in_turns import medians_of, take_turns

from detcli.data.geometry import overlap
from detcli.data.suppression import non_maximum_suppression

CANDIDATES = (1_000, 10_000, 100_000)
CLASSES = (1, 80)
OBJECTS = (10, 100, 1000)
IOU_THRESHOLD = 0.7
LIMIT = 300
JITTER = 0.06  # of the objects' sides


def candidates(count, class_count, object_count):
    """Boxes `(N, 4)` around objects, best first, with scores and classes `(N,)`."""
    random = np.random.default_rng(0)
    centres = random.uniform(0, 640, (object_count, 2))
    sides = random.uniform(20, 200, (object_count, 2))
    classes = random.integers(0, class_count, object_count)
    index = random.integers(0, object_count, count)
    centre = centres[index] + random.normal(0, JITTER, (count, 2)) * sides[index]
    side = sides[index] * np.exp(random.normal(0, JITTER, (count, 2)))
    boxes = np.concatenate([centre - side / 2, centre + side / 2], axis=1).astype(np.float32)
    scores = np.sort(random.random(count).astype(np.float32))[::-1].copy()
    return boxes, scores, classes[index]


def by_loop(boxes, class_id):
    """Each box that is kept beside all that come after it."""
    remaining = np.arange(len(boxes))
    survivors = []
    while len(remaining) and len(survivors) < LIMIT:
        best = remaining[0]
        remaining = remaining[1:]
        survivors.append(best)
        is_duplicate = overlap(boxes[best], boxes[remaining]) > np.float32(IOU_THRESHOLD)
        is_duplicate &= class_id[remaining] == class_id[best]
        remaining = remaining[~is_duplicate]
    return np.array(survivors)


def implementations(boxes, scores, class_id):
    """What is timed, by name."""

    def detcli():
        return non_maximum_suppression(boxes, class_id, IOU_THRESHOLD, LIMIT)

    def loop():
        return by_loop(boxes, class_id)

    by_name = {"detcli": detcli, "a loop": loop}
    try:
        import torch
        from torchvision.ops import batched_nms
    except (ImportError, RuntimeError):  # a torchvision for another torch
        return by_name
    box_tensor = torch.from_numpy(boxes)
    score_tensor = torch.from_numpy(scores)
    class_tensor = torch.from_numpy(class_id)

    def torchvision():
        survivors = batched_nms(box_tensor, score_tensor, class_tensor, IOU_THRESHOLD)
        return survivors[:LIMIT].numpy()

    return by_name | {"torchvision": torchvision}


def main():
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case")
    seconds = parser.parse_args().seconds
    for count in CANDIDATES:
        for class_count in CLASSES:
            for object_count in OBJECTS:
                boxes, scores, class_id = candidates(count, class_count, object_count)
                by_name = implementations(boxes, scores, class_id)
                expected = by_name["a loop"]()
                for name, run in by_name.items():
                    assert np.array_equal(run(), expected), name
                medians = medians_of(take_turns(by_name, seconds))
                print(f"\n{count} candidates, {class_count} classes, {object_count} objects")
                for name, median in medians.items():
                    ratio = median / medians["detcli"]
                    print(f"  {name:12} {median * 1e3:9.2f} ms  {ratio:7.2f} x detcli")


if __name__ == "__main__":
    main()
