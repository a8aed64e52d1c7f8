import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")
pytest.importorskip("skimage", reason="scikit-image is not installed; it is in the extra `train`")
pytest.importorskip("sklearn", reason="scikit-learn is not installed; it is in the extra `train`")
pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra `train`")

from codes import data
from codes.assets import training_assets
from codes.data import PADDING, Scenes, Stage, letterboxed, letterboxed_scene, mosaic, turned
from codes.scene import Scene

STAGES = [
    Stage(0, (64, 96)),
    Stage(6, (96,)),
    Stage(9, (128,), tiles=2),
    Stage(14, (128,), tiles=2, hard=True),
]


@pytest.fixture(scope="module")
def assets():
    return training_assets(0)


@pytest.fixture(autouse=True)
def short_gap(monkeypatch):
    monkeypatch.setattr(data, "GAP", 2)


def test_reused_scenes_equal_newly_rendered_ones(assets):
    """Also across a change of image size, from single scenes to mosaics, and to harder ones."""
    reusing = Scenes(3, assets, 8, STAGES)
    for step in range(20):
        reused = reusing[step]
        rendered = Scenes(3, assets, 8, STAGES)[step]
        assert torch.equal(reused.images, rendered.images)
        assert torch.equal(reused.objects.box, rendered.objects.box)


def test_a_mosaic_is_four_scenes_with_their_boxes(assets):
    whole = mosaic(3, 1, assets, 256, 2)
    scenes = [letterboxed_scene(3, 4 + tile, assets, 128) for tile in range(4)]
    top = np.hstack([scenes[0].image, scenes[1].image])
    bottom = np.hstack([scenes[2].image, scenes[3].image])
    assert np.array_equal(whole.image, np.vstack([top, bottom]))
    boxes = [
        scenes[0].boxes,
        scenes[1].boxes + (128, 0, 128, 0),
        scenes[2].boxes + (0, 128, 0, 128),
        scenes[3].boxes + (128, 128, 128, 128),
    ]
    assert len(whole.labels) == len(whole.boxes) > 0
    assert np.allclose(whole.boxes, np.concatenate(boxes))


def test_a_scene_is_used_four_times_and_then_dropped(assets):
    scenes = Scenes(3, assets, 4, [Stage(0, (64,))])
    batches = [scenes[step] for step in range(8)]
    fresh = batches[0].images[0]
    swapped = fresh.transpose(1, 2)
    assert torch.equal(batches[2].images[1], swapped.flip(2))  # turned by 90 degrees
    assert torch.equal(batches[4].images[2], fresh.flip(2))
    assert torch.equal(batches[6].images[3], swapped)
    assert len(scenes.scenes_to_reuse) == 6  # of six steps, one each


def test_sides_take_turns(assets):
    scenes = Scenes(3, assets, 4, STAGES)
    sides = [scenes[step].images.shape[3] for step in range(8)]
    assert sides == [64, 96, 64, 96, 64, 96, 96, 96]


def test_the_shares_of_all_processes_make_the_batch(assets):
    whole = Scenes(3, assets, 8, STAGES)[0].images
    shares = []
    for rank in (0, 1):
        scenes = Scenes(3, assets, 8, STAGES, rank=rank, processes=2)
        shares.append(scenes[0].images)
    assert torch.equal(torch.stack(shares, 1).flatten(0, 1), whole)


def test_a_batch_that_cannot_be_divided():
    with pytest.raises(ValueError, match="not a multiple"):
        Scenes(0, None, 10, STAGES, processes=2)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("flip", [False, True])
def test_boxes_stay_on_their_objects(swap, flip):
    image = np.zeros((20, 30, 3), np.uint8)
    image[3:8, 10:16] = 255
    scene = Scene(image, np.array([1]), np.float32([[10, 3, 16, 8]]))  # type: ignore[arg-type]
    other = turned(scene, swap=swap, flip=flip)
    x0, y0, x1, y1 = other.boxes[0].astype(int)
    assert other.image[y0:y1, x0:x1].all()
    assert other.image.sum() == other.image[y0:y1, x0:x1].sum()
    assert scene.boxes.tolist() == [[10, 3, 16, 8]]


def test_a_small_image_is_padded_and_a_large_one_shrinks_with_its_boxes():
    image = np.zeros((20, 40, 3), np.uint8)
    image[5:15, 10:30] = 255
    scene = Scene(image, np.zeros(1, np.int64), np.array([[10, 5, 30, 15]], np.float32))
    padded = letterboxed(scene, 160)
    assert padded.boxes.tolist() == [[70, 75, 90, 85]]
    assert np.array_equal(padded.image[70:90, 60:100], image)
    assert (padded.image == PADDING).sum() == 3 * (160 * 160 - 20 * 40)
    shrunk = letterboxed(scene, 20)
    assert shrunk.boxes.tolist() == [[5, 7.5, 15, 12.5]]
    assert (shrunk.image[:5] == PADDING).all()
    assert shrunk.image[9:12, 7:13].min() == 255
