"""Non-maximum suppression against a plain double loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from detcli.backend.postprocess import non_maximum_suppression


def plain_iou(one, other):
    width = max(min(one[2], other[2]) - max(one[0], other[0]), np.float32(0))
    height = max(min(one[3], other[3]) - max(one[1], other[1]), np.float32(0))
    areas = [
        max(box[2] - box[0], np.float32(0)) * max(box[3] - box[1], np.float32(0))
        for box in (one, other)
    ]
    union = areas[0] + areas[1] - width * height
    return width * height / union if union > 0 else np.float32(0)


def plain_nms(boxes, class_id, threshold, limit):
    kept = []
    for index in range(len(boxes)):
        if len(kept) < limit and not any(
            class_id[index] == class_id[better]
            and plain_iou(boxes[better], boxes[index]) > np.float32(threshold)
            for better in kept
        ):
            kept.append(index)
    return kept


BOXES = st_numpy.arrays(
    np.float32, st.tuples(st.integers(0, 12), st.just(4)), elements=st.integers(0, 6)
)


@given(BOXES, st.data(), st.sampled_from([0.1, 0.5, 1 / 3, 1.0]), st.integers(1, 14))
def test_greedy_and_by_class(boxes, data, threshold, limit):
    class_id = data.draw(st_numpy.arrays(np.int64, len(boxes), elements=st.integers(0, 1)))
    kept = non_maximum_suppression(boxes, class_id, threshold, limit)
    assert kept.tolist() == plain_nms(boxes, class_id, threshold, limit)


def test_overlap_at_the_threshold_stays():
    boxes = np.array([[0, 0, 2, 1], [1, 0, 3, 1]], np.float32)  # IoU 1/3
    both = np.zeros(2, np.int64)
    assert non_maximum_suppression(boxes, both, 1 / 3, 9).tolist() == [0, 1]
    assert non_maximum_suppression(boxes, both, 0.33, 9).tolist() == [0]
    assert len(non_maximum_suppression(boxes[[0] * 4], both[[0] * 4], 1.0, 9)) == 4
