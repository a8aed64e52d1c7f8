"""How far detections confirm themselves."""

from types import SimpleNamespace

import numpy as np
import pytest
import seeker_model

from detcli.commands.inspect.consistency import MOST, SelfConsistency, spread
from detcli.detections import Detections
from detcli.errors import SourceError
from detcli.source.sources import Sources

GREY = np.full((60, 80, 3), 90, np.uint8)
BOXES = np.array([[10, 10, 40, 40], [50, 5, 70, 55]], np.float32)


def measure(detect, *images):
    """Measure a function from a picture to (boxes, scores)."""

    def submit(pictures):
        boxes, scores = detect(pictures[0].pixels)
        boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
        scores = np.asarray(scores, np.float32)
        found = Detections(boxes, scores, np.zeros(len(boxes), np.int64), ("thing",))
        return lambda: [found]

    evidence = SelfConsistency((), (), images or (GREY,))
    return evidence.measure(SimpleNamespace(submit=submit), lambda: None)


def in_views(boxes, image, original=GREY):
    """Where boxes of a picture are in one of its views, which are told apart by their content."""
    if image.shape != original.shape:
        top, left = np.subtract(image.shape[:2], original.shape[:2])
        return boxes + np.float32([left, top, left, top])
    if np.array_equal(image, original):
        return boxes
    x1, y1, x2, y2 = boxes.T
    width = original.shape[1]
    return np.stack([width - x2, y1, width - x1, y2], axis=1)


LEFT_DARK = GREY.copy()
LEFT_DARK[:, :20] = 0


def test_what_is_found_again_in_all_views_counts():
    result = measure(lambda image: (in_views(BOXES, image, LEFT_DARK), [0.9, 0.5]), LEFT_DARK)
    assert result.confirmed == pytest.approx(1)
    assert result.rank == pytest.approx(np.log1p(0.9**2 + 0.5**2))
    assert result.found == pytest.approx(1.4)


def test_the_least_sure_view_says_how_much_is_confirmed():
    def detect(image):
        sure = 0.8 if image.shape == LEFT_DARK.shape else 0.6
        return in_views(BOXES[:1], image, LEFT_DARK), [sure]

    result = measure(detect, LEFT_DARK)
    assert result.confirmed == pytest.approx(0.6 / 0.8)
    assert result.rank == pytest.approx(np.log1p(0.6**2 - 0.2**2))


def test_certainty_without_confirmation_is_worth_nothing(random):
    """As of a network that is fed nonsense: a hundred sure boxes, others in each view."""

    def detect(_):
        corners = random.uniform(0, 40, (100, 2))
        return np.concatenate([corners, corners + 10], axis=1), np.ones(100)

    result = measure(detect)
    assert result.found == 100
    assert result.rank == 0


def test_boxes_that_stay_where_they_are_confirm_nothing():
    """As of a network that finds the same in every picture."""
    result = measure(lambda _: (BOXES, [0.9, 0.9]))
    assert result.rank == 0


def test_scores_above_1_count_as_1():
    result = measure(lambda image: (in_views(BOXES, image, LEFT_DARK), [7.0, 1.0]), LEFT_DARK)
    assert result.rank == pytest.approx(np.log1p(2))


def test_nothing_found():
    result = measure(lambda _: ([], []))
    assert (result.rank, result.found, result.confirmed) == (0, 0, 0)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 31, 32, 33, 100, 999, 1001])
def test_pictures_are_spread_over_the_source(count):
    chosen = spread(range(count))
    assert len(chosen) == min(count, MOST)
    assert chosen == sorted(set(chosen))
    if count >= MOST:
        assert chosen[0] == 0
        assert np.diff(chosen).max() <= 2 * count / MOST


def test_unreadable_pictures_are_left_out_and_named(tmp_path, random):
    seeker_model.write_pictures(tmp_path, random, 3)
    (tmp_path / "1.png").write_bytes(b"no picture")
    with Sources([str(tmp_path)]) as sources:
        evidence = SelfConsistency.of(sources)
    assert [name.rpartition("/")[2] for name in evidence.pictures] == ["0.png", "2.png"]
    (failed,) = evidence.failed
    assert failed.source.endswith("1.png")
    with Sources([str(tmp_path / "1.png")]) as sources, pytest.raises(SourceError, match=r"1\.png"):
        SelfConsistency.of(sources)
    with Sources([str(tmp_path / "none*")]) as sources, pytest.raises(SourceError, match="--try"):
        SelfConsistency.of(sources)
