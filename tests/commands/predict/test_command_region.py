"""`detcli predict --region`: as if the rectangle were the image, but in the image's pixels."""

from pathlib import Path

import cv2
import numpy as np
import optional
import pytest
from json_lines import column_of, detections_of, optional_column_of

from detcli.data.detections import CORNERS
from detcli.data.record import box_of

DEMO = Path(__file__).parents[3] / "models/codes/demo.jpg"


BOXES = {
    "35,20,155,131": (35, 20, 155, 131),
    "0,0.5,0.25,1": (0, 150, 100, 300),
    "0.9999,0.9999,1,1": (399, 299, 400, 300),
    "0,0,1,1": (0, 0, 400, 300),
}


@pytest.fixture
def colourful_image(random, tmp_path):
    """An image of 400x300 pixels with many colours."""
    noise = random.integers(0, 256, (15, 20, 3), np.uint8)
    pixels = cv2.resize(noise, (400, 300), interpolation=cv2.INTER_NEAREST)
    cv2.imwrite(str(tmp_path / "a.jpg"), pixels)
    return "a.jpg"


@pytest.fixture
def cut(predict, tmp_path):
    """Detections in a rectangle of a file, and in a file that has only its pixels, moved."""

    def compare(path, region, box, options):
        pixels = cv2.imread(str(tmp_path / path))
        left, top, right, bottom = box
        cv2.imwrite(str(tmp_path / "cut.png"), pixels[top:bottom, left:right])
        (inside,) = predict(f"{path} --region {region} {options}").records
        (alone,) = predict(f"cut.png {options}").records
        height, width = pixels.shape[:2]
        assert inside["height"] == height
        assert inside["width"] == width
        room = [right - left, bottom - top] * 2
        for detection in alone["detections"]:
            moved = np.add(np.clip(box_of(detection), 0, room), [left, top, left, top])
            detection |= dict(zip(CORNERS, moved, strict=True))
            if detection.get("corners"):
                detection["corners"] = np.add(detection["corners"], [left, top])
        return inside["detections"], alone["detections"]

    return compare


@pytest.mark.slow
@pytest.mark.usefixtures("each_device")
@pytest.mark.parametrize("options", ["", "--tile 90 --save out", "--fast-decode"])
@pytest.mark.parametrize("region", BOXES)
def test_a_region_is_looked_at_as_if_it_were_the_image(
    cut, colourful_image, tmp_path, region, options
):
    inside, alone = cut(colourful_image, region, BOXES[region], f"--conf 0.7 {options}")
    class_names = column_of(alone, "class_name")
    assert column_of(inside, "class_name") == class_names
    for name in list(CORNERS) + ["score"]:
        expected = column_of(alone, name)
        np.testing.assert_allclose(column_of(inside, name), expected, atol=0.011)
    assert inside or region.startswith("0.9")
    if "--save" in options:
        assert cv2.imread(str(tmp_path / "out/a.jpg")).shape == (300, 400, 3)


def test_symbols_are_read_only_there(cut):
    pytest.importorskip("zxingcpp")
    options = "-m codes --device cpu --read"
    height, width = cv2.imread(str(DEMO)).shape[:2]
    box = (0, 0, width // 2, height)
    inside, alone = cut(DEMO, f"0,0,{width // 2},{height}", box, options)
    texts = column_of(alone, "text")
    assert column_of(inside, "text") == texts
    assert 0 < len(inside) < 7
    for detection, expected in zip(inside, alone, strict=True):
        np.testing.assert_allclose(detection["corners"], expected["corners"], atol=0.11)


IN_A_REGION = "clip.mp4 --conf 0.6 --region 0,0,0.25,1 --zone left=0,0,0.5,0,0.5,1,0,1 --batch 3"


def test_shards_know_of_the_region(predict, make_video, in_shards):
    make_video(frames=8, red_from=0)
    single_run, merged = in_shards(IN_A_REGION)
    assert merged == single_run
    predict(f"{IN_A_REGION} -o parts/ --region 0,0,0.5,1", code=2, says="region")


@optional.needs("trackers")
def test_zones_and_tracks_know_of_the_region(predict, make_video):
    make_video(frames=8, red_from=0)
    records = predict(f"{IN_A_REGION} --track bytetrack").records
    detections = detections_of(records)
    assert len(detections) == 8 * 8
    for detection in detections:
        assert detection["x2"] <= 16.5
        assert detection["zones"] == ["left"]
    assert set(optional_column_of(detections, "track_id")) >= set(range(1, 9))


def test_a_smaller_image_is_an_error_and_the_others_go_on(predict, make_image):
    make_image("b.png", ("red", 9, 2), size=(64, 128))
    options = "--conf 0.6 --region 64,0,128,64 --batch 4"
    first, second = predict(f"a.png b.png {options}", code=3).records
    assert first["error"]["type"] == "SourceError"
    assert "the image has 64x64 pixels, and so no region 64,0,128,64" in first["error"]["message"]
    assert "fractions" in first["error"]["hint"]
    (detection,) = second["detections"]
    assert box_of(detection) == (72, 16, 80, 24)
    predict("a.png --region 0.5,0,0.2,1", code=2, says="not a rectangle")


def test_nothing_is_hidden_where_nothing_is_looked_for(predict, tmp_path):
    predict("a.png --region 0.5,0,1,1 --blur red --save out", code=2, says="outside it as it is")
    assert not (tmp_path / "out").exists()
