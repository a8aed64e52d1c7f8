import pytest

pytest.importorskip("segno", reason="segno is not installed; it is in the extra `train`")
pytest.importorskip("skimage", reason="scikit-image is not installed; it is in the extra `train`")
pytest.importorskip("sklearn", reason="scikit-learn is not installed; it is in the extra `train`")
pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra `train`")

import numpy as np
import zxingcpp
from codes import assets as store
from codes.scene import MIN_BOX, render
from codes.surfaces import sheet
from codes.symbols import NAMES, symbol

SIDE = 320


@pytest.fixture(scope="module")
def assets():
    return store.training_assets(0)


def test_the_same_number_gives_the_same_scene(assets):
    first, again = (render(3, 5, made, SIDE, 288) for made in (assets, store.training_assets(0)))
    other = render(3, 6, assets, SIDE, 288)
    assert first.picture.shape == (SIDE, 288, 3)
    assert np.array_equal(first.picture, again.picture)
    assert np.array_equal(first.boxes, again.boxes)
    assert not np.array_equal(first.picture, other.picture)


def test_boxes_are_inside_the_picture_and_large_enough(assets):
    scenes = [render(4, index, assets, SIDE, SIDE) for index in range(40)]
    boxes = np.concatenate([scene.boxes for scene in scenes])
    labels = np.concatenate([scene.labels for scene in scenes])
    assert set(labels.tolist()) == set(range(len(NAMES)))
    assert boxes.dtype == np.float32
    assert boxes.min() >= 0
    assert boxes.max() <= SIDE
    assert (boxes[:, 2:] - boxes[:, :2]).min() >= MIN_BOX


def test_symbols_reach_from_tiny_to_cut_off_by_the_picture(assets):
    scenes = [render(8, index, assets, SIDE, SIDE) for index in range(120)]
    boxes = np.concatenate([scene.boxes for scene in scenes])
    longer = (boxes[:, 2:] - boxes[:, :2]).max(1)
    assert longer.min() < 20
    assert (longer > 0.8 * SIDE).sum() >= 3
    at_the_edge = (boxes.min(1) == 0) | (boxes.max(1) == SIDE)
    assert 0.05 < at_the_edge.mean() < 0.5


def test_readable_symbols_are_labelled_in_place(assets):
    """zxing-cpp, which knows nothing of the labels, finds symbols only inside their boxes."""
    families = {"QR Code": 0, "Data Matrix": 2, "PDF417": 4, "Aztec": 6}
    read, misses = 0, []
    for index in range(60):
        scene = render(5, index, assets, SIDE, SIDE)
        for found in zxingcpp.read_barcodes(scene.picture):
            label = families.get(str(found.format))
            if label is None:
                continue
            corners = [
                getattr(found.position, f"{v}_{h}")
                for v in ("top", "bottom")
                for h in ("left", "right")
            ]
            points = np.array([(corner.x, corner.y) for corner in corners])
            hull = np.clip(np.concatenate([points.min(0), points.max(0)]), 0, SIDE)
            boxes = scene.boxes[scene.labels == label]
            read += 1
            misses.append(min(np.abs(boxes - hull).max(1), default=np.inf))
    assert read >= 8
    # A reader's corners are those of its grid, rounded to pixels, and bent symbols have none.
    assert np.median(misses) < 2.5
    assert max(misses) < 0.2 * SIDE


def test_lookalikes_have_no_labels(assets):
    scene = render(6, 0, assets, SIDE, SIDE, symbols=False)
    assert scene.boxes.shape == (0, 4)
    assert len(np.unique(scene.picture)) > 20


def test_training_and_held_out_assets_are_disjoint():
    training, held_out = store.training_assets(0), store.held_out_assets(0)
    assert not set(store.TRAINING_PHOTOGRAPHS) & set(store.HELD_OUT_PHOTOGRAPHS)
    assert set(held_out.negatives) - set(training.negatives)
    seen = {line.tobytes() for line in training.lettering.lines}
    assert not [line for line in held_out.lettering.lines if line.tobytes() in seen]


@pytest.mark.parametrize(("name", "least"), [("qr_code", 1), ("aruco", 0.5)])
def test_symbols_of_a_sheet_are_apart_and_markers_less(name, least):
    """In quiet zones: a board's markers may be closer to each other."""
    closest = 9.0
    for seed in range(40):
        random = np.random.default_rng(seed)
        symbols = [symbol(random, name) for _ in range(4)]
        areas = sheet(random, symbols, 4, scale=8).areas
        assert [area.label for area in areas] == [one.label for one in symbols]
        boxes = np.array([area.box for area in areas])
        gaps = boxes[1:, 0] - boxes[:-1, 2]
        closest = min(closest, gaps.min() / (8 * symbols[0].quiet))
    assert least <= closest < 2 * least
