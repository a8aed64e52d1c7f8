from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")

from codes.loss import ALPHA, BETA, Objects, assign, candidates, complete_iou
from codes.network import square

CENTRES, _ = square(96, (8, 16, 32))


class Candidate(NamedTuple):
    """An anchor that an object may take, with the IoU of its box and the paper's alignment."""

    object_id: int
    anchor: int
    iou: float
    merit: float


def assign_one_by_one(objects, scores, boxes, max_anchors):
    """Assign anchors to objects as `assign` does, in plain loops over objects and anchors.

    Args:
        objects: The labelled objects of a batch.
        scores: Predicted scores, `[image, class, anchor]`.
        boxes: Predicted boxes, `[image, anchor, 4]`.
        max_anchors: The most anchors for an object.

    Returns:
        The target of each pair, `{(object_id, anchor): target}`.
    """
    claims = {}  # by (image, anchor): the candidates of the objects that took it
    for object_id in range(len(objects.label)):
        image = int(objects.image[object_id])
        candidates = anchors_inside(objects, object_id, scores, boxes)
        # The best first; of equal ones the anchor with the lower number.
        candidates.sort(key=lambda candidate: (-candidate.merit, candidate.anchor))
        for candidate in candidates[:max_anchors]:
            claims.setdefault((image, candidate.anchor), []).append(candidate)

    assigned = {}  # by object: the candidates that are assigned to it
    for claims_of_anchor in claims.values():
        # The object that overlaps most; of equal ones the one with the lower number.
        winner = min(claims_of_anchor, key=lambda claim: (-claim.iou, claim.object_id))
        assigned.setdefault(winner.object_id, []).append(winner)

    targets = {}
    for object_id, candidates in assigned.items():
        top_iou = max(candidate.iou for candidate in candidates)
        top_merit = max(candidate.merit for candidate in candidates)
        for candidate in candidates:
            target = candidate.merit / max(top_merit, 1e-9) * top_iou
            targets[object_id, candidate.anchor] = target
    return targets


def anchors_inside(objects, object_id, scores, boxes):
    """The anchors whose centre is inside an object's box, as a list of `Candidate`.

    Args:
        objects: The labelled objects of a batch.
        object_id: Index of the object.
        scores: Predicted scores, `[image, class, anchor]`.
        boxes: Predicted boxes, `[image, anchor, 4]`.
    """
    x1, y1, x2, y2 = objects.box[object_id].tolist()
    image = int(objects.image[object_id])
    label = int(objects.label[object_id])
    candidates = []
    for anchor, (x, y) in enumerate(CENTRES.tolist()):
        if x1 < x < x2 and y1 < y < y2:
            iou = max(float(complete_iou(objects.box[object_id], boxes[image, anchor])), 0)
            score = float(scores[image, label, anchor])
            merit = score**ALPHA * iou**BETA
            candidates.append(Candidate(object_id, anchor, iou, merit))
    return candidates


def random_case(seed, count):
    make = torch.Generator().manual_seed(seed)
    image = torch.randint(3, (count,), generator=make).sort().values
    label = torch.randint(6, (count,), generator=make)
    corner = torch.rand(count, 2, generator=make) * 70
    box = torch.cat([corner, corner + 9 + 40 * torch.rand(count, 2, generator=make)], 1)
    objects = Objects(image, label, box)
    scores = torch.rand(3, 6, len(CENTRES), generator=make)
    around = CENTRES + 4 * torch.randn(3, len(CENTRES), 2, generator=make)
    reach = 4 + 24 * torch.rand(3, len(CENTRES), 2, generator=make)
    return objects, scores, torch.cat([around - reach, around + reach], 2)


@pytest.mark.parametrize("max_anchors", [1, 10])
@pytest.mark.parametrize("seed", range(8))
def test_the_assignment_matches_a_plain_implementation(seed, max_anchors):
    objects, scores, boxes = random_case(seed, count=9)
    pairs = candidates(objects, CENTRES)
    image = objects.image[pairs.object_ids]
    chosen = assign(
        objects,
        pairs,
        scores[image, objects.label[pairs.object_ids], pairs.anchor_ids],
        boxes[image, pairs.anchor_ids],
        max_anchors,
    )
    keys = zip(chosen.object_ids.tolist(), chosen.anchor_ids.tolist(), strict=True)
    targets = dict(zip(keys, chosen.targets.tolist(), strict=True))
    expected = assign_one_by_one(objects, scores, boxes, max_anchors)
    assert targets.keys() == expected.keys()
    assert targets == pytest.approx(expected, abs=1e-5)


def test_one_to_one_gives_each_object_at_most_one_anchor():
    objects, scores, boxes = random_case(1, count=9)
    pairs = candidates(objects, CENTRES)
    image = objects.image[pairs.object_ids]
    score = scores[image, objects.label[pairs.object_ids], pairs.anchor_ids]
    chosen = assign(objects, pairs, score, boxes[image, pairs.anchor_ids], 1)
    assert len(chosen.object_ids.unique()) == len(chosen.object_ids)


def test_no_objects_give_no_positives():
    objects = Objects(torch.zeros(0, dtype=int), torch.zeros(0, dtype=int), torch.zeros(0, 4))
    pairs = candidates(objects, CENTRES)
    chosen = assign(objects, pairs, torch.zeros(0), torch.zeros(0, 4), 10)
    assert [len(part) for part in chosen] == [0, 0, 0]


def test_a_centre_on_the_edge_is_outside():
    edge = torch.tensor([[4.0, 4, 12, 12]])  # from centre to centre of four cells of stride 8
    zero = torch.zeros(1, dtype=int)
    pairs = candidates(Objects(zero, zero, edge), CENTRES)
    assert CENTRES[pairs.anchor_ids].tolist() == [[8, 8]]  # of stride 16
