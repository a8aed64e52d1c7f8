"""`detcli predict --tile`: records, journals and shards know of it, and bad values are refused."""

import cv2
import pytest
from colour_model import cell_box, image_of

from detcli.data.record import box_of

SQUARES = [("red", 2, 3), ("blue", 6, 6), ("green", 7, 3), ("red", 19, 13)]
TILE = "--tile 64,overlap=0.25"


@pytest.fixture
def large_scene(tmp_path):
    cv2.imwrite(str(tmp_path / "large.png"), image_of(SQUARES, size=(112, 160), grey=40))
    return tmp_path / "large.png"


@pytest.mark.usefixtures("each_device")
def test_small_things_in_a_large_image_are_found(predict, large_scene, tmp_path):
    (record,) = predict(f"large.png {TILE} --conf 0.6 --save out --labels none").records
    assert record["width"] == 160
    assert record["height"] == 112
    boxes = []
    for detection in record["detections"]:
        boxes.append((detection["class_name"], list(box_of(detection))))
    expected_boxes = []
    for name, column, row in SQUARES:
        expected_boxes.append((name, cell_box(column, row)))
    assert sorted(boxes) == sorted(expected_boxes)
    drawn = cv2.imread(str(tmp_path / "out/large.png"))
    assert drawn.shape == (112, 160, 3)
    assert (drawn != cv2.imread(str(large_scene))).any(axis=2)[104:112, 152:160].any()
    (without_tiles,) = predict("large.png --conf 0.6").records
    assert without_tiles["detections"] == []


@pytest.mark.usefixtures("large_scene")
def test_a_manifest_knows_the_tiles(predict, in_shards):
    single_run, merged = in_shards(f"large.png --conf 0.6 {TILE}")
    assert merged == single_run
    predict("large.png --conf 0.6 --tile 64 -o parts/", code=2, says="tile")
