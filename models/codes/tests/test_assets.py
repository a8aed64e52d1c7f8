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
def assets_with_folder(tmp_path_factory):
    """Training assets with a folder of one photograph, all grey, and one cut-out.

    The folder also has an image that is too small, a damaged one, and a file that is no image,
    which are all to be passed over.
    """
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "below").mkdir()
    cv2.imwrite(str(folder / "below/photograph.png"), np.full((300, 400, 3), 200, np.uint8))

    cutout = np.zeros((200, 300, 4), np.uint8)
    cutout[50:90, 100:200] = 255
    cv2.imwrite(str(folder / "cutout.png"), cutout)

    icon = np.zeros((MIN_PHOTOGRAPH_SIDE - 1, 500, 3), np.uint8)
    cv2.imwrite(str(folder / "icon.png"), icon)
    (folder / "damaged.jpg").write_bytes(b"not an image")
    (folder / "README").write_text("neither", encoding="utf-8")
    return training_assets(0, str(folder))


def test_a_folder_gives_photographs_and_cutouts(assets_with_folder):
    assert [image.shape for image in assets_with_folder.photographs] == [(300, 400, 3)]
    [(image, alpha)] = assets_with_folder.cutouts
    assert image.shape == (40, 100, 3)
    assert alpha.shape == (40, 100)


def test_half_of_the_backgrounds_are_its_photographs(assets_with_folder):
    random = np.random.default_rng(0)
    plain = []
    for _ in range(60):
        crop = assets_with_folder.crop(random, 64, 64)
        plain.append(np.ptp(crop.max(2)) == 0)
    assert 18 < sum(plain) < 42


def test_a_cutout_has_the_requested_size(assets_with_folder):
    surface = assets_with_folder.cutout(np.random.default_rng(0), 50)
    assert surface.image.shape == (20, 50, 3)
    assert surface.alpha.shape == (20, 50)
    assert not surface.areas


def test_a_folder_without_images_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no images are in it"):
        training_assets(0, str(tmp_path))


def test_a_typeface_that_is_missing_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(assets, "TYPEFACES", ["NoSuchFace"])
    with pytest.raises(FileNotFoundError, match=r"NoSuchFace\.ttf: install matplotlib"):
        training_assets(0)
