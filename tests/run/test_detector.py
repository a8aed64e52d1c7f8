"""Detector, the entry point of the library."""

from dataclasses import replace

import numpy as np
import pytest
from colour_model import NAMES, cell_box, picture

from detcli import DetcliWarning, Detections, Detector, DeviceOptions, Settings
from detcli.core.errors import InferenceError, UsageError
from detcli.model.contract import Layout, ScoreForm
from detcli.model.file import prepare

STRICT = Settings(conf=0.6)


def test_one_picture(make_model):
    with Detector(make_model(), device="cpu", settings=STRICT) as detector:
        found = detector(picture(("red", 2, 3)))
    assert isinstance(found, Detections)
    assert (detector.device, detector.model_name) == ("cpu", "colours")
    assert found.xyxy.tolist() == [cell_box(2, 3)]
    assert found.score.tolist() == [1.0]
    assert found.class_id.tolist() == [0]
    assert found.names == NAMES


@pytest.mark.parametrize(
    ("asked", "recommended", "conf"),
    [(None, None, 0.25), (None, "0.6", 0.6), (0.4, "0.6", 0.4), (0.0, "0.6", 0), (None, "0", 0)],
)
def test_the_confidence_is_the_one_asked_for_or_recommended_or_the_usual_one(
    make_model, asked, recommended, conf
):
    """The picture's grey, in 191 of 192 places, scores 0.45."""
    metadata = {"names": str(dict(enumerate(NAMES)))}
    metadata |= {} if recommended is None else {"detcli.conf": recommended}
    with Detector(make_model(metadata=metadata), "cpu", Settings(conf=asked)) as detector:
        found = detector(picture(("red", 2, 3)))
    assert detector.conf == conf
    assert len(found) == (1 if conf == 0.6 else 190)
    assert found.score.min() > conf


@pytest.fixture
def promise(monkeypatch):
    """Make the models that are opened from now on promise something else."""

    def replaced(**contract):
        def prepared(*args, **options):
            model = prepare(*args, **options)
            return replace(model, contract=replace(model.contract, **contract))

        monkeypatch.setattr("detcli.run.batches.prepare", prepared)

    return replaced


def detected(model, image, **settings):
    with Detector(model, "cpu", Settings(**settings)) as detector:
        found = detector(image)
    return [(name, score, box.tolist()) for box, score, _, name in found]


def test_confidences_of_logits_are_those_of_their_sigmoids(make_model, promise, random):
    """The model's scores, 0 to 1, are taken for logits: as scores they are 0.5 to 0.73."""
    image = random.integers(0, 256, (64, 64, 3), np.uint8)
    promise(score_form=ScoreForm.LOGITS)
    everything = detected(make_model(), image, conf=0)
    assert [score for _, score, _ in everything] == sorted(
        (score for _, score, _ in everything), reverse=True
    )
    assert len(everything) == 3 * 64
    least = {"red": 0.63, "green": 0.6, "blue": 0.62}
    found = detected(make_model(), image, conf=0.6, class_conf=(("red", 0.63), ("blue", 0.62)))
    assert found == [row for row in everything if row[1] > np.float32(least[row[0]])]
    assert 0 < len(found) < len(everything)
    found = detected(make_model(), image, conf=0.6, classes=("blue",), max_det=7)
    assert found == [row for row in everything if row[0] == "blue" and row[1] > 0.6][:7]
    assert detected(make_model(), image, conf=1) == []


def test_a_model_may_leave_one_class_to_each_anchor(make_model, promise, random):
    image = random.integers(0, 256, (64, 64, 3), np.uint8)
    unique = detected(make_model(), image, conf=0.3, unique=True)
    several = detected(make_model(), image, conf=0.3)
    promise(one_class=True)
    assert detected(make_model(), image, conf=0.3) == unique
    assert len(unique) < len(several)


def test_unique_needs_anchors(make_model, promise):
    promise(layout=Layout.ROWS)
    with pytest.raises(UsageError, match="--unique: colours selects its detections itself"):
        Detector(make_model(), "cpu", Settings(unique=True))


def test_half_uses_the_float16_file_of_a_named_model(hub, make_model):
    half = make_model("half.onnx", dtype=np.float16)
    hub.add("yolov10n", make_model().read_bytes(), half=half.read_bytes())
    options = DeviceOptions(half=True)
    with Detector("yolov10n", device="cpu", settings=STRICT, options=options) as detector:
        assert detector.model_name == "yolov10n-fp16"
        assert detector.contract.input_dtype == "float16"
        assert detector(picture(("red", 2, 3))).class_name.tolist() == ["red"]
    with pytest.raises(UsageError, match="--half has no effect"):
        Detector(half, device="cpu", options=options)


def test_a_list_of_pictures_of_different_sizes(make_model):
    with Detector(str(make_model()), settings=STRICT) as detector:
        images = [picture(("red", 2, 3)), picture(("blue", 0, 1), size=(64, 48)), picture()]
        found = detector(images)
        assert [one.class_name.tolist() for one in found] == [["red"], ["blue"], []]
        assert [detector(image).to_dict() for image in images] == [one.to_dict() for one in found]
        assert detector([]) == []


def test_a_view_of_a_picture_and_what_is_none(make_model):
    wide = np.concatenate([picture(("red", 1, 1)), picture(("blue", 1, 1))], axis=1)
    with Detector(make_model(), settings=STRICT) as detector:
        assert detector(wide[:, 64:]).class_name.tolist() == ["blue"]
        assert detector(wide[:, :64][::-1]).xyxy.tolist() == [cell_box(1, 6)]
        for shape in ((4, 4), (4, 4, 4), (0, 4, 3)):
            with pytest.raises(ValueError, match="uint8 BGR"):
                detector(np.zeros(shape, np.uint8))
        with pytest.raises(ValueError, match="uint8 BGR"):
            detector(np.zeros((4, 4, 3), np.float32))


def test_odd_names_are_warned_about(make_model):
    model = make_model(metadata={"names": "['red']"})
    with pytest.warns(DetcliWarning, match="names 1 classes, the graph has 3"):
        detector = Detector(model)
    assert detector.contract.names == ("red", "class_1", "class_2")


def test_names_that_classes_share(make_model):
    model = make_model(metadata={"names": "['x', 'y', 'x']"})
    with Detector(model, settings=Settings(conf=0.6, classes=("x",))) as detector:
        found = detector(picture(("red", 0, 0), ("green", 1, 1), ("blue", 2, 2)))
    assert sorted(found.class_id.tolist()) == [0, 2]


def test_a_closed_detector_refuses_to_run(make_model):
    with Detector(make_model()) as detector:
        detector.close()
    with pytest.raises(InferenceError, match="closed"):
        detector(picture())
