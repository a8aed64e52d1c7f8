import cv2
import pytest

pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")
pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra `train`")

from codes.curves import draw
from codes.train import COLUMNS


def test_the_losses_are_drawn(tmp_path):
    rows = [
        "\t".join([str(step), "0.01", *(str(step / 50 + i) for i in range(6))])
        for step in (50, 100)
    ]
    (tmp_path / "log.tsv").write_text("\n".join(["\t".join(COLUMNS), *rows, ""]))
    draw(tmp_path / "log.tsv", tmp_path / "curves.png")
    drawn = cv2.imread(str(tmp_path / "curves.png"))
    assert drawn.shape == (320, 900, 3)
    assert drawn.std() > 1
