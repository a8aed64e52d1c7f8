import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")

from codes.loss import ALPHA, BETA, Objects, assign, candidates, complete_iou
from codes.network import square

CENTRES, _ = square(96, (8, 16, 32))


def plainly(objects, scores, boxes, most):
    """The same, one object and one anchor at a time: `{(object, anchor): target}`."""
    wishes = {}  # (image, anchor): [(iou, object, merit)]
    for item in range(len(objects.label)):
        x0, y0, x1, y1 = objects.box[item].tolist()
        image = int(objects.picture[item])
        ranked = []
        for anchor, (x, y) in enumerate(CENTRES.tolist()):
            if x0 < x < x1 and y0 < y < y1:
                iou = max(float(complete_iou(objects.box[item], boxes[image, anchor])), 0)
                score = float(scores[image, int(objects.label[item]), anchor])
                ranked.append((score**ALPHA * iou**BETA, -anchor, iou))
        for merit, minus_anchor, iou in sorted(ranked, reverse=True)[:most]:
            wishes.setdefault((image, -minus_anchor), []).append((iou, -item, merit))
    granted = {}
    for (_, anchor), claims in wishes.items():
        iou, minus_item, merit = max(claims)
        granted.setdefault(-minus_item, []).append((anchor, iou, merit))
    targets = {}
    for item, rows in granted.items():
        top_iou, top_merit = max(r[1] for r in rows), max(r[2] for r in rows)
        for anchor, _, merit in rows:
            targets[item, anchor] = merit / max(top_merit, 1e-9) * top_iou
    return targets


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


@pytest.mark.parametrize("most", [1, 10])
@pytest.mark.parametrize("seed", range(8))
def test_the_assignment_matches_a_plain_implementation(seed, most):
    objects, scores, boxes = random_case(seed, count=9)
    pairs = candidates(objects, CENTRES)
    image = objects.picture[pairs.item]
    chosen = assign(
        objects,
        pairs,
        scores[image, objects.label[pairs.item], pairs.anchor],
        boxes[image, pairs.anchor],
        most,
    )
    keys = zip(chosen.item.tolist(), chosen.anchor.tolist(), strict=True)
    found = dict(zip(keys, chosen.target.tolist(), strict=True))
    expected = plainly(objects, scores, boxes, most)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, abs=1e-5)


def test_one_to_one_gives_each_object_at_most_one_anchor():
    objects, scores, boxes = random_case(1, count=9)
    pairs = candidates(objects, CENTRES)
    image = objects.picture[pairs.item]
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
