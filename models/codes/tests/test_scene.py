import pytest

pytest.importorskip("segno", reason="segno is not installed; it is in the extra `train`")
pytest.importorskip("skimage", reason="scikit-image is not installed; it is in the extra `train`")
pytest.importorskip("sklearn", reason="scikit-learn is not installed; it is in the extra `train`")
pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra `train`")

import numpy as np
import zxingcpp
from codes import assets as store
from codes import camera, negatives
from codes.scene import MIN_BOX, MIN_SIDE, generated, render
from codes.surfaces import enlarged, sheet, styled
from codes.symbols import NAMES, symbol
from codes.view import Tilt

SIDE = 320


@pytest.fixture(scope="module")
def assets():
    return store.training_assets(0)


def rendered(assets, seed, count):
    """The first scenes of a seed."""
    return [render(seed, index, assets, SIDE, SIDE) for index in range(count)]


def boxes_of(scenes):
    """The boxes `(N, 4)` of all scenes."""
    return np.concatenate([scene.boxes for scene in scenes])


def test_the_same_number_gives_the_same_scene(assets):
    first = render(3, 5, assets, SIDE, 288)
    again = render(3, 5, store.training_assets(0), SIDE, 288)
    other = render(3, 6, assets, SIDE, 288)
    assert first.image.shape == (SIDE, 288, 3)
    assert np.array_equal(first.image, again.image)
    assert np.array_equal(first.boxes, again.boxes)
    assert not np.array_equal(first.image, other.image)


def test_boxes_are_inside_the_image_and_large_enough(assets):
    scenes = rendered(assets, 4, 40)
    boxes = boxes_of(scenes)
    labels = np.concatenate([scene.labels for scene in scenes])
    assert set(labels.tolist()) == set(range(len(NAMES)))
    assert boxes.dtype == np.float32
    assert boxes.min() >= 0
    assert boxes.max() <= SIDE
    assert (boxes[:, 2:] - boxes[:, :2]).min() >= MIN_BOX


def test_symbols_reach_from_tiny_to_cut_off_by_the_image(assets):
    boxes = boxes_of(rendered(assets, 8, 120))
    longer = (boxes[:, 2:] - boxes[:, :2]).max(1)
    assert longer.min() < 20
    assert (longer > 0.8 * SIDE).sum() >= 3
    at_the_edge = (boxes.min(1) == 0) | (boxes.max(1) == SIDE)
    assert 0.05 < at_the_edge.mean() < 0.5


def test_readable_symbols_are_labelled_in_place(assets):
    """zxing-cpp, which knows nothing of the labels, finds symbols only inside their boxes."""
    families = {"QR Code": 0, "Data Matrix": 2, "PDF417": 4, "Aztec": 6}
    read, misses = 0, []
    for scene in rendered(assets, 5, 120):
        for barcode in zxingcpp.read_barcodes(scene.image):
            label = families.get(str(barcode.format))
            if label is None:
                continue
            position = barcode.position
            points = []
            for corner in (
                position.top_left,
                position.top_right,
                position.bottom_left,
                position.bottom_right,
            ):
                points.append((corner.x, corner.y))
            hull = np.clip(np.concatenate([np.min(points, 0), np.max(points, 0)]), 0, SIDE)
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
    assert len(np.unique(scene.image)) > 20


def test_training_and_held_out_assets_are_disjoint():
    training, held_out = store.training_assets(0), store.held_out_assets(0)
    assert not set(store.TRAINING_PHOTOGRAPHS) & set(store.HELD_OUT_PHOTOGRAPHS)
    assert set(held_out.negatives) - set(training.negatives)
    seen = {line.tobytes() for line in training.lettering.lines}
    for line in held_out.lettering.lines:
        assert line.tobytes() not in seen


@pytest.mark.parametrize(("name", "least"), [("qr_code", 1), ("aruco", 0.5)])
def test_symbols_of_a_sheet_are_apart_and_markers_less(name, least):
    """In quiet zones: a board's markers may be closer to each other."""
    closest = 9.0
    for seed in range(40):
        random = np.random.default_rng(seed)
        symbols = [symbol(random, name) for _ in range(4)]
        areas = sheet(random, symbols, 4, scale=8).areas
        for area, code in zip(areas, symbols, strict=True):
            assert area.label == code.label
        boxes = np.array([area.box for area in areas])
        gaps = boxes[1:, 0] - boxes[:-1, 2]
        closest = min(closest, gaps.min() / (8 * symbols[0].quiet))
    assert least <= closest < 2 * least


def test_a_generated_image_is_filled_by_its_symbol(assets):
    scenes = [generated(9, index, assets, SIDE) for index in range(40)]
    sizes = np.array([scene.image.shape[:2] for scene in scenes])
    boxes = boxes_of(scenes)
    sides = boxes[:, 2:] - boxes[:, :2]
    assert sides.max(1).min() >= MIN_SIDE
    assert sizes.max() > SIDE
    assert np.median(sides.max(1) / sizes.max(1)) > 0.7


def test_styled_qr_codes_can_be_read():
    read = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        image = 255 - np.pad(styled(random, symbol(random, "qr_code").cells, 8), 40)
        formats = [str(barcode.format) for barcode in zxingcpp.read_barcodes(image)]
        read.append("QR Code" in formats)
    assert np.mean(read) > 0.8


def test_a_dimmed_image_keeps_5_to_25_levels_of_each_symbol():
    random = np.random.default_rng(0)
    image = np.full((80, 120, 3), 200, np.uint8)
    image[10:50, 10:50] = 255 - enlarged(random.integers(0, 2, (10, 10), np.uint8), 4)[..., None]
    box = np.float32([[10, 10, 50, 50]])  # type: ignore[arg-type]
    for _ in range(20):
        assert 4 <= np.ptp(camera.dimmed(random, image, box)[10:50, 10:50]) <= 30  # type: ignore[arg-type]


def test_surfaces_lean_by_10_to_25_degrees_and_are_seen_from_the_side():
    rolls = []
    pitches = []
    for seed in range(400):
        tilt = Tilt(np.random.default_rng(seed))
        rolls.append(tilt.roll)
        pitches.append(tilt.pitch)
    lean = np.abs(np.degrees(rolls))
    assert 0.08 < np.mean((lean > 10) & (lean < 25)) < 0.3
    assert np.degrees(np.abs(pitches)).max() > 75


@pytest.mark.parametrize("maker", sorted(set(negatives.HARD), key=lambda maker: maker.__name__))  # type: ignore[attr-defined]
def test_lookalikes_have_light_and_dark_parts_at_any_size(maker, assets):
    contrasts = []
    for side in (24, 150):
        for seed in range(3):
            cover = maker(np.random.default_rng(seed), side, assets.lettering)
            assert cover.dtype == np.uint8
            assert cover.ndim == 2
            contrasts.append(np.ptp(cover))
    assert max(contrasts) > 60


def test_a_sheet_may_repeat_one_marking(assets):
    """Data Matrix of 18 to 32 pixels in rows, as on parts."""
    most = 0
    for scene in rendered(assets, 11, 150):
        sides = (scene.boxes[:, 2:] - scene.boxes[:, :2]).max(1)
        most = max(most, int(((scene.labels == 2) & (sides < 40)).sum()))
    assert most >= 6
