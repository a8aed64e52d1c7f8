"""Times the selection beside the ways that other programs do it, all in one run.

    python tests/benchmarks/selection.py [--runs 500]

Each line is the median over the runs; the ways take turns, so that they share whatever else the
machine is doing. Before anything is timed, all must agree on the scores.
"""

import argparse
import platform
import statistics
import time
from functools import partial

import numpy as np

from detcli.backend.postprocess import SelectionOptions, select
from detcli.topk import top_k

CLASSES, ANCHORS, KEEP = 80, 8400, 300


def detector_head(generator):
    """A head like a detector's: low scores everywhere, high ones at a few neighbouring anchors."""
    head = generator.random((4 + CLASSES, ANCHORS), np.float32)
    head[4:] **= 24
    head[4:] *= 0.2
    for _ in range(6):
        place = generator.integers(0, ANCHORS - 4)
        head[4 + generator.integers(CLASSES), place : place + 4] = generator.uniform(0.3, 0.95, 4)
    return head


def by_argsort(head, confidence):
    """Both stages by a stable sort of everything."""
    scores = head[4:]
    anchors = np.argsort(-scores.max(axis=0), kind="stable")[:KEEP]
    flat = scores[:, anchors].T.ravel()
    best = np.argsort(-flat, kind="stable")[:KEEP]
    best = best[flat[best] > confidence]
    return anchors[best // CLASSES], best % CLASSES, flat[best]


def by_argpartition(head, confidence):
    """Both stages by argpartition; of equal scores it keeps whichever it meets."""
    scores = head[4:]
    anchor_score = scores.max(axis=0)
    anchors = np.argpartition(anchor_score, -KEEP)[-KEEP:]
    anchors = anchors[np.argsort(-anchor_score[anchors])]
    flat = scores[:, anchors].T.ravel()
    best = np.argpartition(flat, -KEEP)[-KEEP:]
    best = best[np.argsort(-flat[best])]
    best = best[flat[best] > confidence]
    return anchors[best // CLASSES], best % CLASSES, flat[best]


def by_detcli(head, confidence):
    """`detcli.backend.postprocess.select`."""
    found = select(head, SelectionOptions(confidence, KEEP, None, None))
    return found.boxes, found.class_id, found.score


def by_torch(head, confidence):
    """`v10postprocess` of the YOLOv10 authors, with torch on the CPU."""
    import torch

    scores = torch.from_numpy(head[4:]).T[None]  # (1, N, C)
    best, anchors = torch.topk(scores.amax(dim=-1), KEEP, dim=-1)
    kept = torch.gather(scores, 1, anchors[..., None].expand(-1, -1, CLASSES))
    best, index = torch.topk(kept.flatten(1), KEEP, dim=-1)
    return anchors[0][index[0] // CLASSES], index[0] % CLASSES, best[0][best[0] > confidence]


def medians(ways, runs):
    """Median seconds of each way. They take turns in blocks of 20 runs, the caches warm."""
    times = {name: [] for name in ways}
    for _ in range(runs // 20):
        for name, way in ways.items():
            way()
            for _ in range(20):
                start = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main():
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    runs = parser.parse_args().runs
    generator = np.random.default_rng(0)
    heads = {
        "like a detector's": detector_head(generator),
        "uniform noise": generator.random((4 + CLASSES, ANCHORS), np.float32),
    }
    ways = {"class maximum alone": lambda head, _: (head[4:].max(axis=0),)}
    ways |= {"detcli": by_detcli, "argpartition twice": by_argpartition}
    ways |= {"stable argsort twice": by_argsort}
    try:
        import torch

        ways |= {f"torch {torch.__version__}": by_torch}
    except ImportError:
        pass
    print(f"NumPy {np.__version__}, {platform.processor() or platform.machine()}, {runs} runs")
    for title, head in heads.items():
        for confidence in (0.0, 0.25):
            expected = by_argsort(head, confidence)
            np.testing.assert_array_equal(by_detcli(head, confidence)[1], expected[1])
            for way in list(ways.values())[1:]:
                np.testing.assert_array_equal(np.asarray(way(head, confidence)[-1]), expected[2])
            taken = medians(
                {name: partial(way, head, confidence) for name, way in ways.items()}, runs
            )
            print(f"\n[1,84,8400] -> 300, scores {title}, conf {confidence}")
            for name, seconds in taken.items():
                ratio = seconds / taken["detcli"]
                print(f"  {name:22} {seconds * 1e6:8.1f} us  {ratio:6.2f} x detcli")
    row = generator.random(ANCHORS, np.float32)
    np.testing.assert_array_equal(top_k(row, KEEP)[1], np.argsort(-row, kind="stable")[:KEEP])
    rows = {
        "top_k": lambda: top_k(row, KEEP),
        "stable argsort": lambda: np.argsort(-row, kind="stable")[:KEEP],
    }
    print("\none row of 8400 -> 300")
    for name, seconds in medians(rows, runs).items():
        print(f"  {name:22} {seconds * 1e6:8.1f} us")


if __name__ == "__main__":
    main()
