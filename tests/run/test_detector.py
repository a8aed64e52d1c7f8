# mypy: disable-error-code=arg-type
"""Detector, the entry point of the library."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import cv2
import json_lines
import number_video
import numpy as np
import optional
import pytest
from colour_model import NAMES, cell_box, image
from origins import frames_of
from PIL import ExifTags, ImageOps
from PIL import Image as PillowImage
from thinning import thin

from detcli import (
    DetcliWarning,
    Detections,
    Detector,
    DeviceOptions,
    Inputs,
    Settings,
    Tiling,
    Watched,
    predict,
)
from detcli.core.errors import DecodeError, InferenceError, SourceError, UsageError
from detcli.data.geometry import Image
from detcli.model.contract import Layout, MultiLabel, ScoreForm
from detcli.model.prepared import prepare
from detcli.run import detector as module
from detcli.run.batches import BatchDetector

STRICT = Settings(conf=0.6)
GREY_WITH_WHITE = np.full((64, 64), 60, np.uint8)
GREY_WITH_WHITE[8:16, 24:32] = 255


def test_one_image(make_model):
    with Detector(make_model(), device="cpu", settings=STRICT) as detector:
        detections = detector(image(("red", 2, 3)))
    assert isinstance(detections, Detections)
    assert detector.device == "cpu"
    assert detector.model_name == "colours"
    assert detections.xyxy.tolist() == [cell_box(2, 3)]
    assert detections.score.tolist() == [1.0]
    assert detections.class_id.tolist() == [0]
    assert detections.names == NAMES


@pytest.mark.parametrize(
    ("requested", "recommended", "conf"),
    [(None, None, 0.25), (None, "0.6", 0.6), (0.4, "0.6", 0.4), (0.0, "0.6", 0), (None, "0", 0)],
)
def test_the_confidence_is_the_one_asked_for_or_recommended_or_the_usual_one(
    make_model, requested, recommended, conf
):
    """The image's grey, in 191 of 192 places, scores 0.45."""
    metadata = {"names": str(dict(enumerate(NAMES)))}
    if recommended is not None:
        metadata["detcli.conf"] = recommended
    with Detector(
        make_model(metadata=metadata), "cpu", settings=Settings(conf=requested)
    ) as detector:
        detections = detector(image(("red", 2, 3)))
    assert detector.conf == conf
    assert len(detections) == (1 if conf == 0.6 else 190)
    assert detections.score.min() > conf


@pytest.fixture
def promise(monkeypatch):
    """Make the models that are opened from now on promise something else."""

    def replaced(**contract):
        def prepared(*args, **options):
            model = prepare(*args, **options)
            return replace(model, contract=replace(model.contract, **contract))

        monkeypatch.setattr("detcli.run.model_settings.prepare", prepared)

    return replaced


def as_dicts(results):
    """Each image's detections as a dict."""
    return [detections.to_dict() for detections in results]


def detected(model, image, **settings):
    """The class, the score and the box of each detection."""
    with Detector(model, "cpu", settings=Settings(**settings)) as detector:
        detections = detector(image)
    return [(class_name, score, box.tolist()) for box, score, _, class_name in detections]


def class_names_of(rows):
    """The classes of what `detected` returns."""
    return [class_name for class_name, _, _ in rows]


def test_confidences_of_logits_are_those_of_their_sigmoids(make_model, promise, random):
    """The model's scores, 0 to 1, are taken for logits: as scores they are 0.5 to 0.73."""
    image = random.integers(0, 256, (64, 64, 3), np.uint8)
    promise(score_form=ScoreForm.LOGITS)
    everything = detected(make_model(), image, conf=0)
    scores = [score for _, score, _ in everything]
    assert scores == sorted(scores, reverse=True)
    assert len(everything) == 3 * 64

    class_conf = (("red", 0.63), ("blue", 0.62))
    by_class = detected(make_model(), image, conf=0.6, class_conf=class_conf)
    conf_of = {"red": 0.63, "green": 0.6, "blue": 0.62}
    above_conf = []
    for class_name, score, box in everything:
        if score > np.float32(conf_of[class_name]):
            above_conf.append((class_name, score, box))
    assert by_class == above_conf
    assert 0 < len(by_class) < len(everything)

    only_blue = detected(make_model(), image, conf=0.6, classes=("blue",), max_det=7)
    blue_above_conf = []
    for class_name, score, box in everything:
        if class_name == "blue" and score > 0.6:
            blue_above_conf.append((class_name, score, box))
    assert only_blue == blue_above_conf[:7]
    assert detected(make_model(), image, conf=1) == []


def squares_of_levels(*squares):
    """A black image with squares of (colour, column, row, level)."""
    pixels = image(grey=0)
    for colour, column, row, level in squares:
        pixels += image((colour, column, row), grey=0) // 255 * np.uint8(level)
    return pixels


TWO_REDS_AND_A_BLUE = squares_of_levels(("red", 1, 1, 204), ("red", 3, 3, 178), ("blue", 5, 2, 153))
HIGH_FOR_RED = {"conf": 0.3, "class_conf": (("red", 0.9),)}


@pytest.mark.parametrize("tail", ["body", "transposed", "authors", "one-to-many"])
def test_a_class_below_its_confidence_takes_no_place(tail, make_model):
    rows = detected(make_model(tail=tail), TWO_REDS_AND_A_BLUE, max_det=1, **HIGH_FOR_RED)
    assert class_names_of(rows) == ["blue"]


def test_a_class_below_its_confidence_suppresses_nothing(make_model, promise):
    """The blue one lies beneath a red one that does not count, and all classes are compared."""
    promise(class_agnostic=True, nms=0.5)
    image = squares_of_levels(("red", 1, 1, 204), ("blue", 1, 1, 153), ("green", 5, 5, 100))
    rows = detected(make_model(), image, **HIGH_FOR_RED)
    assert class_names_of(rows) == ["blue", "green"]


def test_an_anchor_gives_its_best_class_that_counts(make_model):
    image = squares_of_levels(("red", 1, 1, 204), ("blue", 1, 1, 153))
    rows = detected(make_model(), image, unique=True, **HIGH_FOR_RED)
    assert class_names_of(rows) == ["blue"]


def test_what_is_looked_for_below_the_confidence_takes_no_place(make_model):
    """As `--read` has it: first what counts, then the rest, up to the limit."""
    settings = Settings(max_det=2, **HIGH_FOR_RED)
    with BatchDetector(make_model(), "cpu", settings) as detector:
        images = [Image.whole(TWO_REDS_AND_A_BLUE)]
        (plain,) = detector.submit(images)()
        (lower,) = detector.with_lower_conf(0.1).submit(images)()
    assert plain.class_name.tolist() == ["blue"]
    assert lower.class_name.tolist() == ["red", "blue"]
    assert lower.score.tolist() == sorted(lower.score.tolist(), reverse=True)


def test_what_is_looked_for_below_one_confidence_for_all_comes_last(make_model):
    with BatchDetector(make_model(), "cpu", Settings(conf=0.65, max_det=3)) as detector:
        images = [Image.whole(TWO_REDS_AND_A_BLUE)]
        (plain,) = detector.submit(images)()
        (lower,) = detector.with_lower_conf(0.1).submit(images)()
    assert plain.class_name.tolist() == ["red", "red"]
    assert lower.class_name.tolist() == ["red", "red", "blue"]


def test_a_model_may_leave_one_class_to_each_anchor(make_model, promise, random):
    image = random.integers(0, 256, (64, 64, 3), np.uint8)
    unique = detected(make_model(), image, conf=0.3, unique=True)
    several = detected(make_model(), image, conf=0.3)
    promise(multi_label=MultiLabel.NEVER)
    assert detected(make_model(), image, conf=0.3) == unique
    assert len(unique) < len(several)


def test_unique_needs_anchors(make_model, promise):
    promise(layout=Layout.ROWS)
    with pytest.raises(UsageError, match="unique=True: colours selects its detections itself"):
        Detector(make_model(), "cpu", settings=Settings(unique=True))


def test_agnostic_nms_leaves_one_class_of_boxes_that_overlap(make_model, promise):
    """Each anchor takes part with all its classes, so that two of one cell overlap entirely."""
    promise(multi_label=MultiLabel.ALWAYS)
    image = squares_of_levels(("red", 1, 1, 204), ("blue", 1, 1, 153), ("green", 5, 5, 100))
    by_class = detected(make_model(), image, conf=0.3, nms=0.5)
    assert class_names_of(by_class) == ["red", "blue", "green"]
    of_all_classes = detected(make_model(), image, conf=0.3, nms=0.5, agnostic_nms=True)
    assert class_names_of(of_all_classes) == ["red", "green"]
    assert [by_class[0], by_class[2]] == of_all_classes


def test_agnostic_nms_takes_the_suppression_that_the_model_recommends(make_model, promise):
    promise(multi_label=MultiLabel.ALWAYS, nms=0.5)
    image = squares_of_levels(("red", 1, 1, 204), ("blue", 1, 1, 153))
    assert class_names_of(detected(make_model(), image, conf=0.3, agnostic_nms=True)) == ["red"]


def test_agnostic_nms_needs_a_suppression(make_model):
    with pytest.raises(UsageError, match="agnostic_nms=True: colours gives one box") as raised:
        Detector(make_model(), "cpu", settings=Settings(agnostic_nms=True))
    assert "nms=0.7" in raised.value.hint
    with pytest.raises(UsageError, match="no boxes are compared"):
        Detector(make_model(), "cpu", settings=Settings(agnostic_nms=True, nms="none"))


def test_agnostic_nms_is_found_by_its_name_elsewhere(make_model):
    with pytest.raises(UsageError, match="class_agnostic") as raised:
        Detector(make_model(), "cpu", class_agnostic=True)  # type: ignore[call-arg]
    assert "agnostic_nms" in raised.value.hint


def test_half_uses_the_float16_file_of_a_named_model(hub, make_model):
    half = make_model("half.onnx", dtype=np.float16)
    hub.add("yolov10n", make_model().read_bytes(), half=half.read_bytes())
    options = DeviceOptions(half=True)
    with Detector("yolov10n", device="cpu", settings=STRICT, options=options) as detector:
        assert detector.model_name == "yolov10n-fp16"
        assert detector.contract.input_dtype == "float16"
        assert detector(image(("red", 2, 3))).class_name.tolist() == ["red"]
    with pytest.raises(UsageError, match='half=True has no effect with device="cpu"'):
        Detector(half, device="cpu", options=options)


def test_a_list_of_images_of_different_sizes(make_model):
    with Detector(str(make_model()), settings=STRICT) as detector:
        images = [image(("red", 2, 3)), image(("blue", 0, 1), size=(64, 48)), image()]
        results = detector(images)
        reds, blues, nothing = results
        assert reds.class_name.tolist() == ["red"]
        assert blues.class_name.tolist() == ["blue"]
        assert nothing.class_name.tolist() == []
        for pixels, detections in zip(images, results, strict=True):
            assert detector(pixels).to_dict() == detections.to_dict()
        assert detector([]) == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_array_of_images_is_a_list_of_them(make_model, random, count):
    stack = random.integers(0, 256, (count, 64, 64, 3), np.uint8)
    with Detector(make_model(), settings=Settings(conf=0.5)) as detector:
        for images in (stack, stack[..., ::-1], stack[:, ::-1]):
            results = detector(images)
            assert isinstance(results, list)
            expected = [detector(image.copy()) for image in images]
            assert as_dicts(results) == as_dicts(expected)


@pytest.mark.parametrize(
    "stack",
    [
        np.zeros((2, 3, 64, 64), np.uint8),
        np.zeros((2, 64, 64, 3), np.float32),
        np.zeros((1, 2, 64, 64, 3), np.uint8),
    ],
)
def test_an_array_of_what_are_no_images_is_refused(make_model, stack):
    with Detector(make_model()) as detector, pytest.raises(ValueError, match="uint8 BGR"):
        detector(stack)


def test_settings_may_be_given_by_name(make_model):
    pixels = image(("red", 2, 3), ("blue", 5, 5))
    with Detector(make_model(), "cpu", conf=0.6, classes=["blue"]) as detector:
        assert detector.conf == 0.6
        assert detector(pixels).class_name.tolist() == ["blue"]
    with Detector(make_model(), "cpu", settings=STRICT, classes=["red"]) as detector:
        assert detector.conf == STRICT.conf
        assert detector(pixels).class_name.tolist() == ["red"]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"conf": "0.5"}, "conf is the string '0.5'", "give a number"),
        ({"conf": 2}, "conf is 2", "between 0 and 1"),
        ({"cnof": 0.5}, "takes no cnof", "did you mean conf"),
        ({"iou": 0.5}, "takes no iou", "did you mean nms"),
        ({"workers": 2}, "takes no workers", "options=DeviceOptions(workers=2)"),
        ({"vid_stride": 2}, "takes no vid_stride", "detcli.predict: inputs=Inputs(vid_stride=2)"),
        ({"track": "ocsort"}, "takes no track", "watched=Watched(track='ocsort')"),
        ({"colour": 1}, "takes no colour", "the settings are conf, max_det"),
        ({"device": 0}, "device is 0", "cuda:0"),
        ({"device": None}, "device is None", "use one of the texts auto, cpu"),
        ({"model": None}, "model is None", "path of an ONNX file"),
        ({"model": 3}, "model is 3", "path of an ONNX file"),
        ({"settings": {"conf": 0.5}}, "settings is {'conf': 0.5}", "as in Settings(conf=0.4)"),
        ({"options": {"workers": 2}}, "options is {'workers': 2}", "DeviceOptions(workers=2)"),
        ({"names": "a\0b"}, "no file can be named 'a\\x00b'", "one class name per line"),
        ({"names": "\ud800"}, "no file can be named '\\ud800'", "one class name per line"),
    ],
)
def test_arguments_of_another_type_are_refused(make_model, arguments, message, hint):
    with pytest.raises(UsageError) as caught:
        Detector(**{"model": make_model(), "device": "cpu"} | arguments)
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_a_clone_needs_a_device_or_none(make_model):
    with Detector(make_model(), "cpu") as detector:
        detector.clone().close()
        with pytest.raises(UsageError, match="device is 0"):
            detector.clone(0)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (None, "sources is None"),
        (5, "sources is 5"),
        (np.array(5), r"sources is array\(5\)"),
        ([5], "sources has 5 in it"),
        ([np.zeros((4, 4, 3), np.uint8)], "sources has array"),
        (np.zeros((4, 4, 3), np.uint8), "sources has array"),
        (PillowImage.new("RGB", (4, 4)), "sources is <PIL"),
    ],
)
def test_sources_of_another_type_are_refused(make_model, sources, message):
    with (
        Detector(make_model(), "cpu") as detector,
        pytest.raises(UsageError, match=message) as caught,
    ):
        predict(sources, detector)
    assert "texts or paths" in caught.value.hint


@pytest.mark.parametrize("wrap", [str, Path, os.fsencode, lambda path: iter([path])])
def test_sources_may_be_names_paths_and_iterables_of_them(make_model, make_image, wrap):
    path = make_image("a.png", ("red", 2, 3))
    with Detector(make_model(), "cpu", settings=STRICT) as detector:
        (record,) = predict(wrap(path), detector)
    assert record.detections.class_name.tolist() == ["red"]


def test_predict_refuses_arguments_of_another_type(make_model):
    with pytest.raises(UsageError, match=r"detector is the string 'm\.onnx'") as caught:
        predict("a.png", "m.onnx")
    assert 'as in Detector("yolov10n")' in caught.value.hint
    with Detector(make_model(), "cpu") as detector:
        with pytest.raises(UsageError, match="sources is Detector"):
            predict(detector, detector)
        with pytest.raises(UsageError, match="inputs is Settings") as caught:
            predict("a.png", detector, inputs=STRICT)
        assert "Inputs(vid_stride=2)" in caught.value.hint
        with pytest.raises(UsageError, match="watched is the string") as caught:
            predict("a.png", detector, watched="bytetrack")
        assert 'Watched(track="bytetrack")' in caught.value.hint


@optional.needs("trackers")
def test_zones_and_tracks_may_be_given_as_the_command_line_has_them(make_model, tmp_path):
    film = number_video.write(tmp_path / "film.mp4", 7)
    watched = Watched(zone="all=0,0,1,0,1,1,0,1", track="bytetrack")
    with Detector(make_model(), "cpu") as detector:
        records = list(predict(film, detector, watched=watched))
    assert len(records) == 7
    detections = []
    for record in records:
        assert record.error is None
        detections += record.to_json()["detections"]
    assert detections
    for detection in detections:
        assert detection["zones"] == ["all"]


@pytest.mark.parametrize("size", ["x", "48", 480, None, (480,), (480, 640, 3), (0, 640), (4.5, 6)])
def test_the_letterbox_of_what_is_no_size_is_refused(make_model, size):
    with Detector(make_model(), "cpu") as detector:
        with pytest.raises(UsageError, match="size is ") as caught:
            detector.letterbox(size)
        assert "height and width" in caught.value.hint


def test_the_letterbox_of_a_size_in_an_array(make_model):
    with Detector(make_model(), "cpu") as detector:
        assert detector.letterbox(np.array([480, 640])) == detector.letterbox((480, 640))


@pytest.mark.parametrize("method", [3, 5, 8])
def test_a_pillow_that_is_rotated_is_turned_upright_before(make_model, make_image, method):
    """`rotate` keeps the EXIF in Pillow, so a program lets `exif_transpose` take it away before."""
    path = make_image("a.png", ("red", 2, 3), ("blue", 5, 5))
    with PillowImage.open(path) as plain:
        exif = plain.getexif()
        exif[ExifTags.Base.Orientation] = method
        turned_path = path.with_name("turned.png")
        plain.save(turned_path, exif=exif)
    with Detector(make_model(), "cpu", settings=STRICT) as detector:
        with PillowImage.open(turned_path) as turned:
            upright = ImageOps.exif_transpose(turned)
            rotated = upright.rotate(90, expand=True)
        pixels = np.asarray(rotated)
        assert detector(rotated) == detector(pixels, channels="rgb")
        assert len(detector(rotated)) == 2


def test_a_view_of_an_image_and_what_is_none(make_model):
    wide = np.concatenate([image(("red", 1, 1)), image(("blue", 1, 1))], axis=1)
    with Detector(make_model(), settings=STRICT) as detector:
        assert detector(wide[:, 64:]).class_name.tolist() == ["blue"]
        assert detector(wide[:, :64][::-1]).xyxy.tolist() == [cell_box(1, 6)]
        for shape in ((4, 4), (4, 4, 4), (0, 4, 3)):
            with pytest.raises(ValueError, match="uint8 BGR"):
                detector(np.zeros(shape, np.uint8))
        with pytest.raises(ValueError, match="uint8 BGR"):
            detector(np.zeros((4, 4, 3), np.float32))


@pytest.mark.parametrize(
    "settings",
    [
        Settings(conf=0.4),
        Settings(conf=0.4, tile=Tiling(32)),
        Settings(conf=0.4, tile=Tiling(32, crowd=2)),
        Settings(conf=0.4, region="0,0,0.5,1"),
    ],
    ids=["whole", "tiles", "crowd", "region"],
)
def test_detections_know_the_size_of_their_image(make_model, settings):
    images = [image(("red", 2, 3), size=(64, 48)), image(size=(40, 64))]
    with Detector(make_model(), "cpu", settings=settings) as detector:
        results = detector(images)
        first, second = results
        assert first.image_size == (64, 48)
        assert second.image_size == (40, 64)
        assert detector(images) == results


def test_images_may_be_paths_or_pillows(make_model, make_image):
    path = make_image("a.png", ("red", 2, 3), ("blue", 5, 5))
    with Detector(make_model(), settings=STRICT) as detector:
        expected = detector(cv2.imread(path)).to_dict()
        assert len(expected) == 2
        with PillowImage.open(path) as opened:
            pillows = [opened, opened.convert("RGBA"), opened.convert("P")]
            results = detector([str(path), path] + pillows)
        assert as_dicts(results) == [expected] * 5
        assert detector(str(path)).to_dict() == expected
        assert detector(pillows[1]).to_dict() == expected


@pytest.mark.parametrize(
    ("name", "pillow"),
    [
        ("grey.png", PillowImage.fromarray(np.multiply(GREY_WITH_WHITE, 257, dtype=np.uint16))),
        ("grey.tif", PillowImage.fromarray((GREY_WITH_WHITE / 255).astype(np.float32))),
        ("inks.jpg", PillowImage.fromarray(image(("red", 2, 3))[..., ::-1]).convert("CMYK")),
    ],
)
def test_an_image_of_pillow_gives_the_detections_of_its_file(make_model, tmp_path, name, pillow):
    path = tmp_path / name
    pillow.save(path)
    with Detector(make_model(), conf=0.3) as detector, PillowImage.open(path) as opened:
        assert opened.mode == pillow.mode
        expected = detector(path)
        assert len(expected) > 0
        assert detector(opened) == expected


def test_an_image_of_pillow_that_lies_on_its_side_is_turned(make_model, tmp_path):
    exif = PillowImage.Exif()
    exif[0x0112] = 6  # the stored image has to be turned by 90 degrees clockwise
    path = tmp_path / "turned.png"
    pixels = image(("red", 2, 3), ("blue", 5, 5))
    PillowImage.fromarray(np.rot90(pixels[..., ::-1])).save(path, exif=exif)
    with Detector(make_model(), settings=STRICT) as detector, PillowImage.open(path) as opened:
        expected = detector(pixels).to_dict()
        assert len(expected) == 2
        assert detector(path).to_dict() == expected
        assert detector(opened).to_dict() == expected


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        (None, TypeError, "got None, which cv2.imread returns for a file that it cannot read"),
        ([None], TypeError, "got None"),
        (7, TypeError, "got int"),
        ([["a.png"]], TypeError, "binary mode, or one of Pillow, got list"),
        ("no.png", SourceError, "no.png: no such file"),
        ("x" * 5000, SourceError, "cannot be read: File name too long"),
        (Path(__file__), DecodeError, "test_detector.py: "),
        ("film.mp4", UsageError, "film.mp4 is not the file of one image"),
        ("http://host/a.png", UsageError, "not the file of one image"),
        (Path(__file__).parent, UsageError, "not the file of one image"),
    ],
)
def test_what_is_no_image_says_what_is_expected(make_model, argument, error, message):
    with Detector(make_model()) as detector, pytest.raises(error, match=message):
        detector(argument)


def test_a_detector_says_what_it_is(make_model):
    with Detector(make_model(), "cpu") as detector:
        assert detector.names == NAMES
        assert repr(detector) == "Detector('colours', device='cpu')"


@pytest.mark.parametrize(
    ("text", "in_python"),
    [
        ("pass --nms 0.45", "pass nms=0.45"),
        ("--device openvino:CPU, or --no-cuda-graph", 'device="openvino:CPU", or cuda_graph=False'),
        ("--unique: not --max-det or --batch 1", "unique=True: not max_det or batch=1"),
        ("pip install --upgrade x; or --half", "pip install --upgrade x; or half=True"),
        ("detcli pull x --half, or --names FILE", "detcli pull x --half, or names FILE"),
    ],
)
def test_errors_name_settings_as_python_does(text, in_python):
    with pytest.raises(UsageError) as caught, module._errors_in_python_words():  # noqa: SLF001 - for all texts
        raise UsageError(text, text)
    assert str(caught.value) == in_python
    assert caught.value.hint == in_python


def test_no_error_of_the_library_names_an_option():
    for settings in ({"conf": 2}, {"max_det": 0}, {"nms": 0}, {"imgsz": 0}):
        with pytest.raises(UsageError) as caught:
            Settings(**settings)
        assert "--" not in f"{caught.value} {caught.value.hint}"
    with pytest.raises(UsageError) as caught:
        Inputs(vid_stride=0)
    assert str(caught.value) == "vid_stride is 0"
    with pytest.raises(UsageError) as caught:
        Watched(zone="door")
    assert str(caught.value) == "zone 'door' does not begin with a name"


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "openvino"])
@pytest.mark.parametrize("tile", [None, Tiling(32)])
def test_threads_share_a_detector(make_model, random, device, tile):
    if device == "openvino":
        optional.require("openvino")
    images = random.integers(0, 256, (16, 64, 64, 3), np.uint8)
    settings = Settings(conf=0.5, tile=tile)
    with Detector(
        make_model(), device, settings=settings, options=DeviceOptions(workers=2)
    ) as detector:
        expected = [detector(image).to_dict() for image in images]
        assert len({str(detections) for detections in expected}) == len(images)
        rounds = len(thin("rounds of images in threads", range(8), 2))
        with ThreadPoolExecutor(8) as threads:
            results = list(threads.map(detector, list(images) * rounds))
    assert as_dicts(results) == expected * rounds


@pytest.mark.slow
def test_predict_yields_what_the_command_prints(make_model, make_image, tmp_path, invoke):
    """Images, frames of a video, and in their places a missing file and one that never ends."""
    blue = make_image("blue.png", ("blue", 2, 3))
    red = make_image("red.png", ("red", 2, 3))
    film = number_video.write(tmp_path / "film.mp4", 7)
    endless = tmp_path / "endless.png"
    os.mkfifo(endless)
    sources = [blue, film, "no.png", endless, red]
    writer = os.open(endless, os.O_RDWR)
    with Detector(
        make_model(), "cpu", settings=STRICT, options=DeviceOptions(workers=2)
    ) as detector:
        records = list(predict(sources, detector, inputs=Inputs(vid_stride=3, input_timeout=0.5)))
        line = "-q --format jsonl --vid-stride 3 --input-timeout 0.5 --conf 0.6 --device cpu -m"
        process = invoke("predict", sources, line.split(), make_model())
    os.close(writer)
    assert process.returncode == 3
    printed = json_lines.lines(process.stdout)
    assert frames_of(records) == [None, 0, 3, 6, None, None, None]
    failed = []
    for index, record in enumerate(records):
        if record.error is not None:
            failed.append(index)
    assert failed == [4, 5]
    assert records[-1].detections.class_name.tolist() == ["red"]
    assert "input_timeout" in records[-2].error.hint
    printed[-2]["error"]["hint"] = records[-2].error.hint
    assert [record.to_json() for record in records] == printed


def test_odd_names_are_warned_about(make_model):
    model = make_model(metadata={"names": "['red']"})
    with pytest.warns(DetcliWarning, match="names 1 class, the graph has 3"):
        detector = Detector(model)
    assert detector.contract.names == ("red", "class_1", "class_2")


def test_names_that_classes_share(make_model):
    model = make_model(metadata={"names": "['x', 'y', 'x']"})
    with Detector(model, settings=Settings(conf=0.6, classes=("x",))) as detector:
        detections = detector(image(("red", 0, 0), ("green", 1, 1), ("blue", 2, 2)))
    assert sorted(detections.class_id.tolist()) == [0, 2]


def test_a_closed_detector_refuses_to_run(make_model):
    with Detector(make_model()) as detector:
        detector.close()
    with pytest.raises(InferenceError, match="closed"):
        detector(image())
