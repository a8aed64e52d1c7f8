# mypy: disable-error-code=arg-type
"""A detector that looks at tiles."""

import threading
from dataclasses import replace

import cv2
import numpy as np
import pytest
from colour_model import cell_box, image, image_of

from detcli import DeviceOptions, Settings
from detcli.backend.postprocess import SelectionOptions
from detcli.config.values import Tiling
from detcli.core.errors import InferenceError, UsageError
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.run.batches import BatchDetector
from detcli.run.selections import suppress_across_classes

TILES = Tiling(64, overlap=0.25)
SQUARES = [("red", 2, 3), ("blue", 6, 6), ("green", 7, 3), ("red", 19, 13)]
LARGE = image_of(SQUARES, size=(112, 160), grey=40)


def opened(model, workers=1, **settings):
    settings = Settings(**{"conf": 0.6, "tile": TILES} | settings)
    return BatchDetector(model, "cpu", settings, DeviceOptions(workers=workers))


def detect(detector, image_list):
    """What is found in an image, or in each of a list."""
    if not isinstance(image_list, list):
        [detections] = detect(detector, [image_list])
        return detections
    images = [Image.whole(image) for image in image_list]
    return detector.submit(images)()


def boxes(detections):
    """The class and the edges of each box, sorted."""
    return sorted((class_name, box.tolist()) for box, _, _, class_name in detections)


def boxes_of(squares):
    """What `boxes` gives for coloured cells, of each its colour, column and row."""
    return sorted((colour, list(cell_box(column, row))) for colour, column, row in squares)


def class_names_of(detections):
    """The class of each detection."""
    return [class_name for _, _, _, class_name in detections]


EXPECTED = boxes_of(SQUARES)


def all_detectors(detector):
    """A detector and its helpers."""
    return [detector] + list(detector._helpers)  # noqa: SLF001 - there is no other way to see them


@pytest.mark.parametrize(("workers", "batch"), [(1, 4), (2, 1), (2, None), (5, 4), (5, 1)])
def test_all_objects_are_found_whoever_shares_the_work(make_model, workers, batch):
    with opened(make_model(batch=batch), workers) as detector:
        assert boxes(detect(detector, LARGE)) == EXPECTED
        results = detect(detector, [LARGE, image(), LARGE[:64, :64], LARGE])
    assert [len(detections) for detections in results] == [4, 0, 3, 4]
    assert boxes(results[3]) == EXPECTED


def test_the_work_is_shared_and_an_image_after_the_other_is_read(make_model, monkeypatch):
    threads = set()
    with opened(make_model(), 3) as detector:
        assert detector.workers == 1
        assert detector.batch_size == 3
        for worker in all_detectors(detector):

            def start(images, begin=worker._start_whole):  # noqa: SLF001
                threads.add(threading.current_thread())
                barrier.wait(20)
                return begin(images)

            monkeypatch.setattr(worker, "_start_whole", start)

        def stop_waiting():
            monkeypatch.setattr(barrier, "wait", lambda _: 0)

        barrier = threading.Barrier(3, action=stop_waiting)  # of the first batch of each
        assert boxes(detect(detector, LARGE)) == EXPECTED
        assert len(threads) == 3
        assert detector.finished_batches == len(TILES.areas((112, 160)))
        assert detector.times


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_thread_ends_the_work(make_model, monkeypatch, failing):
    with opened(make_model(), 2) as detector:
        worker = all_detectors(detector)[failing]

        def fail(_):
            raise InferenceError("it broke")

        monkeypatch.setattr(worker, "_start_whole", fail)
        images = [Image.whole(LARGE)] * 9
        with pytest.raises(InferenceError, match="it broke"):
            detector.submit(images)


def test_a_clone_has_helpers_of_its_own(make_model):
    with opened(make_model(), 2) as detector, detector.clone() as clone:
        _, helper = all_detectors(detector)
        _, helper_of_clone = all_detectors(clone)
        assert helper is not helper_of_clone
        assert boxes(detect(clone, LARGE)) == EXPECTED


def test_max_det_and_confidences_of_classes_are_those_of_a_tile(make_model):
    with opened(make_model(), max_det=1) as detector:
        assert len(detect(detector, LARGE)) > 1
    with opened(make_model(), class_conf=(("red", 1.0),)) as detector:
        assert set(class_names_of(detect(detector, LARGE))) == {"blue", "green"}


def test_images_in_tiles_are_decoded_in_full(make_model):
    with opened(make_model(), tile=None) as without_tiles:
        assert without_tiles.fast_for == (64, 64)
    with opened(make_model()) as with_tiles:
        assert with_tiles.fast_for is None


NAMED = {"names": "['red', 'green', 'blue']", "detcli.conf": "0.6"}
CORNER = [("red", 0, 0), ("red", 0, 1), ("red", 1, 0), ("red", 1, 1)]
MIDDLE = [("green", 4, 4), ("green", 4, 5), ("green", 5, 4), ("green", 5, 5)]
# Red and green are seen in the whole image at half its size, blue in a tile only.
CROWD_SQUARES = CORNER + MIDDLE + [("blue", 13, 6)]
CROWD = image_of(CROWD_SQUARES, size=(128, 128))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_crowd_is_looked_at_again_in_tiles(workers, make_model):
    model = make_model(metadata=NAMED)
    with opened(model, workers, tile=None) as detector:
        in_whole = detect(detector, CROWD)
        with_lower_scores = detect(detector.with_lower_conf(0.1), CROWD[:32])
        assert len(with_lower_scores) > 2
        assert sorted(class_names_of(in_whole)) == ["green", "red"]
    with opened(model, workers, tile=Tiling(64, overlap=0.25, crowd=3)) as detector:
        assert boxes(detect(detector, CROWD)) == boxes(in_whole)
        assert detector.fast_for == (64, 64)
    with opened(model, workers, tile=Tiling(64, overlap=0.25, crowd=2)) as detector:
        before, small, after = detect(detector, [CROWD, CROWD[:64, :64], CROWD])
        assert boxes(before) == boxes_of(CROWD_SQUARES)
        assert boxes(after) == boxes_of(CROWD_SQUARES)
        assert len(small) == 8  # it fits into a tile
        # What only a lower confidence shows makes no crowd.
        lower = detector.with_lower_conf(0.1)
        assert boxes(detect(lower, CROWD[:32])) == boxes(with_lower_scores)
    with opened(model, workers, tile=Tiling(64, overlap=0.1, crowd=2)) as detector:
        assert len(detect(detector, CROWD)) == 9 + 2  # with what is larger than the overlap


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({"classes": ("blue",)}, ["blue"]),
        ({"max_det": 1}, None),
        ({"conf": 0.95}, None),
        ({"conf": 0.01}, None),
    ],
)
def test_filters_do_not_change_what_makes_a_crowd(filters, names, make_model):
    model = make_model(metadata=NAMED)
    with opened(model, tile=Tiling(64, overlap=0.25, crowd=2), **filters) as detector:
        detections = detect(detector, CROWD)
        for box, score, _, _ in detections:
            if score > 0.6:
                width, height = box[2:] - box[:2]
                assert width == 8  # of a cell in a tile; in the whole it is twice as large
                assert height == 8
        if names is not None:
            assert class_names_of(detections) == names
    with opened(model, tile=Tiling(64, overlap=0.25, crowd=3), **filters) as detector:
        detections = detect(detector, CROWD)
        assert "blue" not in class_names_of(detections[detections.score > 0.6])


# Four red objects, and a blue one of lower score. It fits into a tile, so there is nothing to cut.
RED_CROWD = image_of(CORNER, size=(64, 64))
RED_CROWD[40:48, 40:48] = (180, 0, 0)


@pytest.mark.parametrize(
    "filters", [{"classes": ("blue",)}, {"conf": 0.6, "class_conf": (("red", 1.0),)}]
)
def test_a_crowd_leaves_room_for_what_is_asked_for(filters, make_model):
    """The red ones are counted, but do not take the place of the blue one."""
    model = make_model(metadata=NAMED)
    with opened(model, tile=Tiling(64, overlap=0.25, crowd=2), max_det=1, **filters) as detector:
        assert class_names_of(detect(detector, RED_CROWD)) == ["blue"]


def test_tiles_are_recommended_by_the_metadata(make_model):
    model = make_model(metadata=NAMED | {"detcli.tile": "64,overlap=0.25,crowd=2"})
    with opened(model, tile=None) as detector:
        assert "blue" in class_names_of(detect(detector, CROWD))
    for tile in (Tiling(64, overlap=0.25, crowd=3), "none"):
        with opened(model, tile=tile) as detector:
            assert "blue" not in class_names_of(detect(detector, CROWD))


def test_tiles_may_go_with_rect(make_model):
    model = make_model(
        size=None,
        batch=None,
        metadata={"names": str({0: "red", 1: "green", 2: "blue"}), "stride": "8"},
    )
    with opened(model, imgsz=64, rect=True) as detector:
        assert boxes(detect(detector, LARGE)) == EXPECTED


def test_a_tile_smaller_than_the_stride_is_refused(make_model):
    model = make_model(metadata={"stride": "32"})
    with pytest.raises(UsageError, match="--tile 31: smaller than the model's stride, 32") as error:
        opened(model, tile=Tiling(31))
    assert error.value.hint == "use the side of its input, 64, or more"
    with opened(model, tile=Tiling(32)):
        pass


def random_detections(random, count):
    """Boxes of three classes that overlap a lot, best first."""
    corners = random.uniform(0, 40, (count, 2))
    sides = random.uniform(10, 40, (count, 2))
    xyxy = np.concatenate([corners, corners + sides], axis=1).astype(np.float32)
    score = np.sort(random.permutation(count).astype(np.float32) / count + 0.01)[::-1]
    return Detections(xyxy, score, random.integers(0, 3, count), ("red", "green", "blue"))


AGNOSTIC = SelectionOptions(0.0, 300, None, nms_iou=0.5, class_agnostic=True)


def test_tiles_of_an_image_show_one_class_of_an_object(random):
    """As OpenCV suppresses boxes, which knows no classes."""
    detections = random_detections(random, 60)
    [remaining] = suppress_across_classes([detections], AGNOSTIC)
    left_top = detections.xyxy[:, :2]
    width_height = detections.xyxy[:, 2:] - left_top
    rectangles = np.concatenate([left_top, width_height], axis=1).tolist()
    expected = cv2.dnn.NMSBoxes(rectangles, detections.score.tolist(), 0.0, 0.5)
    assert 1 < len(expected) < len(detections)
    assert np.array_equal(remaining.xyxy, detections.xyxy[np.sort(expected)])


@pytest.mark.parametrize("changes", [{"class_agnostic": False}, {"nms_iou": None}])
def test_otherwise_all_classes_of_tiles_remain(random, changes):
    detections = random_detections(random, 60)
    [remaining] = suppress_across_classes([detections], replace(AGNOSTIC, **changes))
    assert len(remaining) == len(detections)


def test_a_detector_suppresses_across_the_classes_of_all_tiles(make_model, monkeypatch):
    arguments = []

    def suppressed(results, selection):
        arguments.append(selection)
        return suppress_across_classes(results, selection)

    monkeypatch.setattr("detcli.run.batches.suppress_across_classes", suppressed)
    with opened(make_model(), nms=0.5, agnostic_nms=True) as detector:
        assert boxes(detect(detector, LARGE)) == EXPECTED
    assert [selection.class_agnostic for selection in arguments] == [True]
