"""Times the selection beside other implementations on the CPU, in turns.

    python tests/benchmarks/selection.py [--seconds 5]

Prints medians for heads of both kinds and two confidences, and for rows of several lengths; before
anything is timed, all must agree. `benchmarks.gpu` compares on a GPU.
"""

import argparse
import platform
from functools import partial

import numpy as np
from in_turns import argpartition, detector_head, medians_of, stable_argsort, take_turns

from detcli.backend.postprocess import SelectionOptions, select
from detcli.data.topk import top_k

CLASSES, ANCHORS, KEEP = 80, 8400, 300
ROWS = (8400, 33_600, 1_000_000)


def by_order(order, head, confidence):
    """Both stages by a function that sorts; returns the scores."""
    scores = head[4:]
    anchors = order(scores.max(axis=0), KEEP)
    candidates = scores[:, anchors].T.ravel()
    best = candidates[order(candidates, KEEP)]
    return best[best > confidence]


def by_detcli(head, confidence):
    """`detcli.backend.postprocess.select`."""
    return select(head, SelectionOptions(confidence, KEEP, None, None)).score


def by_torch(torch, head, confidence):
    """`v10postprocess` of the YOLOv10 authors, with torch on the CPU."""
    scores = torch.from_numpy(head[4:]).T[None]  # (1, N, C)
    _, anchors = torch.topk(scores.amax(dim=-1), KEEP, dim=-1)
    candidates = torch.gather(scores, 1, anchors[..., None].expand(-1, -1, CLASSES))
    best, _ = torch.topk(candidates.flatten(1), KEEP, dim=-1)
    return best[0][best[0] > confidence].numpy()


def report(title, implementations, seconds):
    """Time implementations and print their medians."""
    medians = medians_of(take_turns(implementations, seconds))
    print(f"\n{title}")
    for name, median in medians.items():
        ratio = median / medians["detcli"]
        print(f"  {name:22} {median * 1e6:8.1f} us  {ratio:6.2f} x detcli")


def main():
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each case")
    seconds = parser.parse_args().seconds
    generator = np.random.default_rng(0)
    heads = {
        "like a detector's": detector_head(generator, CLASSES, ANCHORS),
        "uniform noise": generator.random((4 + CLASSES, ANCHORS), np.float32),
    }
    selections = {
        "detcli": by_detcli,
        "argpartition twice": partial(by_order, argpartition),
        "stable argsort twice": partial(by_order, stable_argsort),
    }
    try:
        import torch

        selections[f"torch {torch.__version__}"] = partial(by_torch, torch)
    except ImportError:
        pass
    print(f"NumPy {np.__version__}, {platform.processor() or platform.machine()}")
    for title, head in heads.items():
        for confidence in (0.0, 0.25):
            expected = by_order(stable_argsort, head, confidence)
            ready = {}
            for name, select_scores in selections.items():
                ready[name] = partial(select_scores, head, confidence)  # type: ignore[arg-type, operator]
                np.testing.assert_array_equal(ready[name](), expected)
            ready["class maximum alone"] = partial(head[4:].max, axis=0)
            report(f"[1,84,8400] -> 300, scores {title}, conf {confidence}", ready, seconds)
    for length in ROWS:
        row = generator.random(length, np.float32)
        np.testing.assert_array_equal(top_k(row, KEEP)[1], stable_argsort(row, KEEP))
        sorts = {
            "detcli": partial(top_k, row, KEEP),
            "stable_argsort": partial(stable_argsort, row, KEEP),
            "argpartition": partial(argpartition, row, KEEP),
        }
        report(f"one row of {length} -> {KEEP}", sorts, seconds)


if __name__ == "__main__":
    main()
