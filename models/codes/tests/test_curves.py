import cv2
import pytest

pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")
pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra `train`")

from codes.curves import draw
from codes.train import COLUMNS


def test_the_losses_are_drawn(tmp_path):
    rows = [
        COLUMNS,
        ("50", "0.01", "1.0", "2.0", "3.0", "4.0", "5.0", "6.0"),
        ("100", "0.01", "2.0", "3.0", "4.0", "5.0", "6.0", "7.0"),
    ]
    with (tmp_path / "log.tsv").open("w") as file:
        for row in rows:
            file.write("\t".join(row) + "\n")
    draw(tmp_path / "log.tsv", tmp_path / "curves.png")
    drawn = cv2.imread(str(tmp_path / "curves.png"))
    assert drawn.shape == (320, 900, 3)
    assert drawn.std() > 1
