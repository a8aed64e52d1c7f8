import json

import pytest

pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")
pytest.importorskip("pycocotools", reason="pycocotools is not installed; it is in `train`")
pytest.importorskip("skimage", reason="scikit-image is not installed; it is in the extra `train`")
pytest.importorskip("sklearn", reason="scikit-learn is not installed; it is in the extra `train`")
pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra `train`")

import cv2
import numpy as np
from codes.evaluate import (
    IMGSZ,
    MAX_DETECTIONS,
    SHAPES,
    agreement,
    at_confidence,
    average_precision,
    detections,
    duplicates,
    held_out,
    instances,
    measure_images_without_symbols,
    measure_samples,
    samples,
    write_data_set,
)
from codes.export import CONFS
from codes.scene import Scene
from codes.symbols import NAMES


@pytest.fixture(scope="module")
def scenes():
    return list(held_out(6))


def perfect(scene):
    ones = np.ones(len(scene.labels))
    return np.column_stack([scene.boxes, ones, scene.labels]).astype(float)


def test_perfect_answers_score_one(scenes):
    detections_by_image = [perfect(scene) for scene in scenes]
    report = average_precision(instances(scenes), detections_by_image)
    report |= at_confidence(scenes, detections_by_image)
    assert report["mAP50-95"] == report["mAP50"] == pytest.approx(1)
    present = set()
    for scene in scenes:
        for label in scene.labels:
            present.add(NAMES[label])
    for name in NAMES:
        assert report["recall"][name] == (name in present)
    assert np.array(report["confusion"])[~np.eye(len(NAMES) + 1, dtype=bool)].sum() == 0


def test_a_wrong_class_a_miss_and_a_false_alarm_are_told_apart(scenes):
    scene = next(scene for scene in scenes if len(scene.labels) >= 2)
    rows = perfect(scene)
    rows[0, 5] = (rows[0, 5] + 1) % len(NAMES)
    rows[1, :4] = (0, 0, 1, 1)
    confusion = np.array(at_confidence([scene], [rows])["confusion"])
    truth = scene.labels
    assert confusion[truth[0], int(rows[0, 5])] == 1
    assert confusion[truth[1], -1] == 1
    assert confusion[-1, truth[1]] == 1
    assert average_precision(instances([scene]), [rows])["mAP50"] < 1


def test_boxes_come_back_from_the_letterbox(scenes):
    scene = scenes[1]
    height, width = scene.image.shape[:2]
    assert (height, width) != (IMGSZ, IMGSZ)
    left, top = (IMGSZ - width) // 2, (IMGSZ - height) // 2

    def predict(images):
        assert images.shape == (1, 3, IMGSZ, IMGSZ)
        body = np.zeros((1, 4 + len(NAMES), 8400), np.float32)
        body[0, :4, 7] = (left + 10, top + 20, left + 110, top + 220)
        body[0, 4 + 3, 7] = 0.9
        return body

    rows = detections(scene, predict)
    assert len(rows) == MAX_DETECTIONS
    assert rows[0].tolist() == pytest.approx([10, 20, 110, 220, 0.9, 3])


def test_images_are_written_as_a_coco_data_set(tmp_path):
    write_data_set(tmp_path, 3)
    truth = json.loads((tmp_path / "instances.json").read_text())
    assert [entry["name"] for entry in truth["categories"]] == list(NAMES)
    for entry in truth["images"]:
        image = cv2.imread(str(tmp_path / "images" / entry["file_name"]))
        assert image.shape[:2] == (entry["height"], entry["width"])
    for annotation in truth["annotations"]:
        assert min(annotation["bbox"][2:]) > 0


def test_boxes_come_back_from_a_padded_image(scenes):
    scene = scenes[3]
    assert scene.image.shape[:2] == SHAPES[3] == (240, 320)

    def predict(_):
        body = np.zeros((1, 4 + len(NAMES), 8400), np.float32)
        body[0, :4, 7] = (160 + 10, 200 + 20, 160 + 110, 200 + 220)  # in the middle
        body[0, 4, 7] = 0.9
        return body

    assert detections(scene, predict)[0].tolist() == pytest.approx([10, 20, 110, 220, 0.9, 0])


def test_real_images_count_by_what_their_labels_say(tmp_path):
    """A predictor that says `aztec` of dark images, and of bright ones `qr_code` twice."""
    labels = {"0.png": "aztec", "1.png": "qr_code", "2.png": "none:aztec", "3.png": "none:other"}
    labels |= {"4.png": "barcode", "5.png": "other:stacked"}
    lines = ["file\tlabel\tkind\trepository\tpath"]
    for name, label in labels.items():
        lines.append(f"{name}\t{label}\tphoto\ta\tb")
        shade = 255 if name in {"1.png", "3.png", "4.png"} else 0
        cv2.imwrite(str(tmp_path / name), np.full((30, 30, 3), shade, np.uint8))
    (tmp_path / "labels.tsv").write_text("\n".join(lines))

    def predict(images):
        body = np.zeros((1, 4 + len(NAMES), 8400), np.float32)
        bright = images[0, :, 320, 320].mean() > 0.5
        body[0, 4 + NAMES.index("qr_code" if bright else "aztec"), : 2 if bright else 1] = (
            max(CONFS.values()) + 0.01
        )
        return body

    figures = measure_samples(predict, tmp_path, 0)
    assert figures["recall"] == {"photo": 3 / 4, "aztec": 1, "qr_code": 1, "barcode": 0}
    assert figures["false_alarms"] == {"aztec": 0, "other": 2}
    assert figures["pictures"] == {"photo": 4, "aztec": 2, "qr_code": 1, "barcode": 1}
    assert figures["negatives"] == {"aztec": 1, "other": 1}
    assert len(samples(tmp_path, 4)) == 4
    assert samples(tmp_path, 4) == samples(tmp_path, 4)


def test_false_alarms_are_counted_per_image(tmp_path):
    least = CONFS["qr_code"]
    scores = np.array([0.9, least + 0.01, least - 0.01, 0.51, 0.49])
    for number in range(2):
        cv2.imwrite(str(tmp_path / f"{number}.jpg"), np.zeros((30, 30, 3), np.uint8))

    def predict(_):
        body = np.zeros((1, 4 + len(NAMES), 8400), np.float32)
        body[0, 4, : len(scores)] = scores
        return body

    alarms = measure_images_without_symbols(predict, tmp_path)
    assert alarms == {
        "false_alarms": np.count_nonzero(scores >= least),
        "false_alarms_at_0.5": 2,
    }


def test_duplicates_are_what_nms_would_drop():
    first = (0, 0, 10, 10, 0.9, 0)  # the last is below the recommended confidence
    rows = np.array([first, (0, 0, 10, 9, 0.8, 1), (0, 0, 10, 5, 0.7, 0), (0, 0, 10, 10, 0.2, 0)])
    assert duplicates([rows, np.array([first])]) == 1 / 4
    assert duplicates([]) == 0


def test_a_model_agrees_with_itself_or_not():
    """One that finds what is bright, but scores it 0.9 where it is wide, else 0.4."""
    image = np.zeros((400, 600, 3), np.uint8)
    image[50:150, 100:400] = 255
    scene = Scene(image, np.array([2]), np.float32([[100, 50, 400, 150]]))  # type: ignore[arg-type]

    def predict(images):
        bright = (images[0, 0] > 0.9).astype(np.uint8)
        left, top, wide, tall = cv2.boundingRect(bright)
        body = np.zeros((1, 4 + len(NAMES), 8400), np.float32)
        body[0, :4, 7] = (left, top, left + wide, top + tall)
        body[0, 4 + 2, 7] = 0.9 if wide > tall else 0.4
        return body

    assert agreement(predict, [scene]) == {
        "turned": {"both": 0, "difference": pytest.approx(0.5)},
        "halved": {"both": 1, "difference": 0},
    }
