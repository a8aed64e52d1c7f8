import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")

from codes.loss import ALPHA, BETA, Objects, assign, candidates, complete_iou
from codes.network import square

CENTRES, _ = square(96, (8, 16, 32))


def assign_one_by_one(objects, scores, boxes, max_anchors):
    """Assign anchors to objects as `assign` does, in plain loops over objects and anchors.

    Returns:
        The target of each pair, `{(object, anchor): target}`.
    """
    claims = {}  # by (image, anchor): the objects that took it, each as (iou, merit, object)
    for item in range(len(objects.label)):
        image = int(objects.image[item])
        candidates = anchors_inside(objects, item, scores, boxes)
        # The best first; of equal ones the anchor with the lower number.
        candidates.sort(key=lambda candidate: (-candidate["merit"], candidate["anchor"]))
        for candidate in candidates[:max_anchors]:
            claim = (candidate["iou"], candidate["merit"], item)
            claims.setdefault((image, candidate["anchor"]), []).append(claim)

    assigned = {}  # by object: its anchors, each as (anchor, iou, merit)
    for (_, anchor), claims_of_anchor in claims.items():
        # The object that overlaps most; of equal ones the one with the lower number.
        iou, merit, item = min(claims_of_anchor, key=lambda claim: (-claim[0], claim[2]))
        assigned.setdefault(item, []).append((anchor, iou, merit))

    targets = {}
    for item, anchors in assigned.items():
        top_iou = max(iou for _, iou, _ in anchors)
        top_merit = max(merit for _, _, merit in anchors)
        for anchor, _, merit in anchors:
            targets[item, anchor] = merit / max(top_merit, 1e-9) * top_iou
    return targets


def anchors_inside(objects, item, scores, boxes):
    """The anchors whose centre is inside an object, with their IoU and merit."""
    x1, y1, x2, y2 = objects.box[item].tolist()
    image = int(objects.image[item])
    label = int(objects.label[item])
    candidates = []
    for anchor, (x, y) in enumerate(CENTRES.tolist()):
        if x1 < x < x2 and y1 < y < y2:
            iou = max(float(complete_iou(objects.box[item], boxes[image, anchor])), 0)
            merit = float(scores[image, label, anchor]) ** ALPHA * iou**BETA
            candidates.append({"anchor": anchor, "iou": iou, "merit": merit})
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
    image = objects.image[pairs.item]
    chosen = assign(
        objects,
        pairs,
        scores[image, objects.label[pairs.item], pairs.anchor],
        boxes[image, pairs.anchor],
        max_anchors,
    )
    keys = zip(chosen.item.tolist(), chosen.anchor.tolist(), strict=True)
    targets = dict(zip(keys, chosen.target.tolist(), strict=True))
    expected = assign_one_by_one(objects, scores, boxes, max_anchors)
    assert targets.keys() == expected.keys()
    assert targets == pytest.approx(expected, abs=1e-5)


def test_one_to_one_gives_each_object_at_most_one_anchor():
    objects, scores, boxes = random_case(1, count=9)
    pairs = candidates(objects, CENTRES)
    image = objects.image[pairs.item]
    score = scores[image, objects.label[pairs.item], pairs.anchor]
    chosen = assign(objects, pairs, score, boxes[image, pairs.anchor], 1)
    assert len(chosen.item.unique()) == len(chosen.item)


def test_no_objects_give_no_positives():
    objects = Objects(torch.zeros(0, dtype=int), torch.zeros(0, dtype=int), torch.zeros(0, 4))
    pairs = candidates(objects, CENTRES)
    chosen = assign(objects, pairs, torch.zeros(0), torch.zeros(0, 4), 10)
    assert [len(part) for part in chosen] == [0, 0, 0]


def test_a_centre_on_the_edge_is_outside():
    edge = torch.tensor([[4.0, 4, 12, 12]])  # from centre to centre of four cells of stride 8
    zero = torch.zeros(1, dtype=int)
    pairs = candidates(Objects(zero, zero, edge), CENTRES)
    assert CENTRES[pairs.anchor].tolist() == [[8, 8]]  # of stride 16
