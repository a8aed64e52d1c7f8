import pytest

pytest.importorskip("segno", reason="segno is not installed; it is in the extra `train`")
pytest.importorskip("skimage", reason="scikit-image is not installed; it is in the extra `train`")
pytest.importorskip("sklearn", reason="scikit-learn is not installed; it is in the extra `train`")
pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra `train`")

import cv2
import numpy as np
from codes import assets
from codes.assets import MIN_PHOTOGRAPH_SIDE, training_assets


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Assets with a photograph of one shade and a thing, among what is neither."""
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "below").mkdir()
    cv2.imwrite(str(folder / "below/photograph.png"), np.full((300, 400, 3), 200, np.uint8))
    thing = np.zeros((200, 300, 4), np.uint8)
    thing[50:90, 100:200] = 255
    cv2.imwrite(str(folder / "thing.png"), thing)
    icon = np.zeros((MIN_PHOTOGRAPH_SIDE - 1, 500, 3), np.uint8)
    cv2.imwrite(str(folder / "icon.png"), icon)
    (folder / "damaged.jpg").write_bytes(b"not an image")
    (folder / "README").write_text("neither", encoding="utf-8")
    return training_assets(0, str(folder))


def test_a_folder_gives_photographs_and_things(made):
    assert [one.shape for one in made.photographs] == [(300, 400, 3)]
    [(image, cover)] = made.things
    assert image.shape == (40, 100, 3)
    assert cover.shape == (40, 100)


def test_half_of_the_backgrounds_are_its_photographs(made):
    random = np.random.default_rng(0)
    plain = [np.ptp(made.crop(random, 64, 64).max(2)) == 0 for _ in range(60)]
    assert 18 < sum(plain) < 42


def test_a_thing_has_the_size_asked_for(made):
    surface = made.thing(np.random.default_rng(0), 50)
    assert surface.picture.shape == (20, 50, 3)
    assert surface.cover.shape == (20, 50)
    assert not surface.areas


def test_a_folder_without_images_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no images are in it"):
        training_assets(0, str(tmp_path))


def test_a_typeface_that_is_missing_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(assets, "TYPEFACES", ["NoSuchFace"])
    with pytest.raises(FileNotFoundError, match=r"NoSuchFace\.ttf: install matplotlib"):
        training_assets(0)
