import contextlib
import io
import sys

import pytest
from comparisons import compared, random_pictures
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detcli.commands.eval.evaluator import require_evaluator
from detcli.commands.eval.metrics import score
from detcli.errors import DependencyError

BOX = (10.0, 10.0, 20.0, 20.0)
HIT = (BOX, 0, 0.9)


def test_one_hit_is_perfect():
    scores = score([compared(1, [(BOX, 0, {})], [HIT])], [0])
    assert scores.overall.map50_95 == scores.overall.ar_1 == 1
    assert scores.overall.map_small == 1  # 20x20 pixels
    assert scores.overall.map_medium is None
    assert scores.overall.map_large is None
    assert scores.precision[0].tolist() == pytest.approx([1] * 101)


def test_nothing_found_and_nothing_there_are_two_things():
    scores = score([compared(1, [(BOX, 0, {})], [(BOX, 1, 0.9)])], [0, 1])
    assert scores.by_category[0].map50_95 == 0
    assert scores.by_category[1].map50_95 is None
    assert scores.overall.map50_95 == 0
    assert scores.rankings[1].hit.tolist() == [False]
    assert scores.rankings[1].boxes == 0


def test_no_picture_at_all():
    scores = score([], [0, 1])
    assert scores.overall.map50_95 is None
    assert len(scores.rankings[0].score) == 0


def test_the_first_label_counts_as_any_other():
    """To the evaluator, an object whose id is 0 would never be found."""
    pictures = [compared(0, [(BOX, 0, {})], [HIT])]
    assert score(pictures, [0]).rankings[0].hit.tolist() == [True]


@pytest.mark.parametrize("kind", ["crowd", "ignored"])
def test_crowds_and_what_is_ignored_are_neither_missed_nor_false_alarms(kind):
    other = (50.0, 50.0, 20.0, 20.0)
    labels = [(BOX, 0, {}), (other, 0, {kind: True})]
    found = score([compared(1, labels, [HIT, (other, 0, 0.95)])], [0])
    missed = score([compared(1, labels, [HIT])], [0])
    for scores in (found, missed):
        assert scores.overall.map50_95 == 1
        assert scores.rankings[0].boxes == 1
        assert scores.rankings[0].score.tolist() == [0.9]


def test_many_may_find_one_crowd_but_only_one_an_ignored_object():
    twice = [(BOX, 0, 0.9), (BOX, 0, 0.8)]
    crowd = score([compared(1, [(BOX, 0, {"crowd": True})], twice)], [0])
    ignored = score([compared(1, [(BOX, 0, {"ignored": True})], twice)], [0])
    assert len(crowd.rankings[0].score) == 0
    assert ignored.rankings[0].score.tolist() == [0.8]


def test_the_area_of_the_label_decides_what_is_small():
    small = score([compared(1, [(BOX, 0, {"area": 9.0})], [HIT])], [0]).overall
    large = score([compared(1, [(BOX, 0, {"area": 1e5})], [HIT])], [0]).overall
    assert (small.map_small, small.map_large) == (1, None)
    assert (large.map_small, large.map_large) == (None, 1)


def test_other_categories_do_not_count():
    labels = [(BOX, 0, {}), (BOX, 7, {})]
    scores = score([compared(1, labels, [HIT, (BOX, 5, 0.99)])], [0])
    assert scores.overall.map50_95 == 1


def test_a_hundred_detections_of_a_class_are_looked_at():
    detections = [((float(n), 0.0, 1.0, 1.0), 0, 0.9) for n in range(100)] + [(BOX, 0, 0.5)]
    scores = score([compared(1, [(BOX, 0, {})], detections)], [0])
    assert scores.overall.map50_95 == 0
    assert len(scores.rankings[0].score) == 100


def test_the_figures_are_those_of_pycocotools_used_as_its_authors_do(random):
    pictures = random_pictures(random)
    labels, results = [], []
    for picture in pictures:
        objects, found = picture.objects, picture.found
        labels += [
            {"id": 1000 + len(labels) + row, "image_id": picture.image_id, "iscrowd": int(crowd),
             "category_id": int(category), "bbox": box.tolist(), "area": float(box[2] * box[3])}
            for row, (box, category, crowd) in enumerate(
                zip(objects.boxes, objects.category, objects.crowd, strict=True))
        ]  # fmt: skip
        results += [
            {"image_id": picture.image_id, "category_id": int(category), "bbox": box.tolist(),
             "score": float(value)}
            for box, category, value in zip(found.boxes, found.category, found.score, strict=True)
        ]  # fmt: skip
    truth = COCO()
    truth.dataset = {
        "images": [{"id": picture.image_id} for picture in pictures],
        "categories": [{"id": number} for number in range(3)],
        "annotations": labels,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluator = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    ours = score(pictures, range(3))
    expected = evaluator.stats.tolist()
    assert 0.1 < expected[0] < 0.9
    names = ours.overall.__slots__
    for name, figure in zip(names, expected, strict=True):
        assert getattr(ours.overall, name) == (
            None if figure < 0 else pytest.approx(figure, abs=1e-6)
        )
    by_class = [ours.by_category[number].map50_95 for number in range(3)]
    assert sum(by_class) / 3 == pytest.approx(expected[0], abs=2e-6)
    precision = evaluator.eval["precision"][0, :, 1, 0, 2]
    assert ours.precision[1].tolist() == precision.tolist()


def test_nothing_is_printed(capsys):
    score([compared(1, [(BOX, 0, {})], [HIT])], [0])
    assert capsys.readouterr().out == ""


def test_without_the_evaluator_it_says_what_to_install(monkeypatch):
    assert require_evaluator().startswith("pycocotools 2.")
    monkeypatch.setitem(sys.modules, "pycocotools.cocoeval", None)
    with pytest.raises(DependencyError, match="pycocotools does not load") as caught:
        require_evaluator()
    assert caught.value.hint == "pip install 'detcli[eval]'"
