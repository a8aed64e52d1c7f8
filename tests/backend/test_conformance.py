"""What every backend must do; a new one is added to BACKENDS.

"host" is the CUDA backend, its kernels included, on the CPU (backend/cuda/libcuda.py).
"""

from dataclasses import replace

import colour_model
import numpy as np
import onnx.parser
import onnxruntime
import optional
import pytest
import thinning
from backend.cuda.doubles import open_on_host, skip_without_network_on_gpu
from colour_model import cell_box, image, image_of

from detcli import DetcliWarning, Detector, Settings
from detcli.backend import open_backend
from detcli.backend.logits import logit_threshold, sigmoid
from detcli.backend.postprocess import SelectionOptions
from detcli.config.shapes import Region
from detcli.config.values import Tiling
from detcli.core.errors import DeviceError, InferenceError
from detcli.data.geometry import Letterbox
from detcli.model.contract import Layout, MultiLabel, ScoreForm
from detcli.model.prepared import PreparedModel, StoredGraph, prepare

BACKENDS = [
    "cpu",
    pytest.param("openvino", marks=optional.needs("openvino")),
    "host",
    pytest.param("cuda:0", marks=pytest.mark.gpu),
]
SIZES_AND_DTYPES = [(64, np.float32), (64, np.float16), (None, np.float16), (None, np.float32)]
WANTED = SelectionOptions(conf=0.6, max_det=300, class_ids=None, nms_iou=None)
LOGIT_OPTIONS = [
    SelectionOptions(conf=0.0, max_det=20, class_ids=None, nms_iou=None),
    SelectionOptions(conf=0.63, max_det=300, class_ids=None, nms_iou=None),
    SelectionOptions(conf=0.5, max_det=30, class_ids=frozenset({1, 2}), nms_iou=None),
    SelectionOptions(
        conf=0.5, max_det=30, class_ids=None, nms_iou=None, multi_label=MultiLabel.NEVER
    ),
    SelectionOptions(conf=0.5, max_det=30, class_ids=None, nms_iou=0.5),
    SelectionOptions(conf=0.5, max_det=30, class_ids=None, nms_iou=0.5, blends=True),
    SelectionOptions(conf=1.0, max_det=20, class_ids=None, nms_iou=None),
]


@pytest.fixture(params=BACKENDS)
def open_model(request):
    """Load a model, or a model file, on one of the backends."""
    if request.param == "host":
        driver = request.getfixturevalue("driver")
        driver.start(late=False)  # so that a network's failure is known when it is run
        return lambda model: open_on_host(driver, prepared(model))

    if request.param == "cuda:0":
        skip_without_network_on_gpu()
    return lambda model: open_backend(request.param, prepared(model))


def prepared(model):
    return model if isinstance(model, PreparedModel) else prepare(model)


def promising(model, graph=None, **contract):
    """A model file with another contract, and perhaps another graph."""
    model = prepare(model)
    contract = replace(model.contract, **contract)
    stored_graph = StoredGraph.of(graph or model.graph)
    return replace(model, contract=contract, stored_graph=stored_graph)


@pytest.fixture
def detect_once(open_model):
    """Detect in some images with a model that is opened for them."""

    def once(model, images, options=WANTED, canvas=(64, 64)):
        backend = open_model(model)
        detections = detect(backend, images, options, canvas)
        backend.close()
        return detections

    return once


def detect(backend, images, options, canvas=(64, 64)):
    letterboxes = [Letterbox.fit(image.shape[:2], canvas) for image in images]
    buffer = backend.infer(backend.prepare(images, letterboxes))
    return backend.select(buffer, letterboxes, options)()


def as_rows(detections):
    rows = []
    for box, score, _, name in detections:
        rows.append((name, score, box.tolist()))
    return rows


def rows_by_image(detections_by_image):
    return [as_rows(detections) for detections in detections_by_image]


@pytest.mark.slow
@pytest.mark.parametrize("tail", colour_model.TAILS)
@pytest.mark.parametrize(
    ("size", "dtype"), thinning.thin("sizes and dtypes of each layout", SIZES_AND_DTYPES, 2)
)
def test_every_layout_gives_the_same_detections(tail, size, dtype, make_model, detect_once):
    model = make_model(tail=tail, size=size, dtype=dtype)
    options = WANTED if tail != "one-to-many" else SelectionOptions(0.6, 300, None, nms_iou=0.5)
    (detections,) = detect_once(model, [image(("red", 2, 3), ("blue", 5, 0))], options)
    assert as_rows(detections) == [("blue", 1.0, cell_box(5, 0)), ("red", 1.0, cell_box(2, 3))]


def test_tiles_and_regions_give_the_same_detections(open_model, make_model, monkeypatch):
    """Each square once, though those at (6, 6) and (7, 3) are in several tiles, cut and whole."""

    def opened(_device, model, _options):
        backend = open_model(model)
        backend.device = "cpu"
        return backend

    monkeypatch.setattr("detcli.run.batches.open_backend", opened)
    squares = [("red", 2, 3), ("blue", 6, 6), ("green", 7, 3), ("red", 19, 13)]
    pixels = image_of(squares, size=(112, 160), grey=40)
    settings = Settings(conf=0.6, tile=Tiling(64, overlap=0.25))
    with Detector(make_model(size=64, batch=None), "cpu", settings=settings) as detector:
        detections, other_detections = detector([pixels, image(("blue", 1, 1), grey=40)])
    assert sorted(as_rows(detections)) == [
        ("blue", 1.0, cell_box(6, 6)),
        ("green", 1.0, cell_box(7, 3)),
        ("red", 1.0, cell_box(2, 3)),
        ("red", 1.0, cell_box(19, 13)),
    ]
    assert as_rows(other_detections) == [("blue", 1.0, cell_box(1, 1))]
    settings = Settings(conf=0.6, region=Region.parse("48,24,112,88"))
    with Detector(make_model(size=64, batch=None), "cpu", settings=settings) as detector:
        detections, other_detections = detector([pixels, image(("blue", 12, 9), size=(104, 112))])
    assert sorted(as_rows(detections)) == [
        ("blue", 1.0, cell_box(6, 6)),
        ("green", 1.0, cell_box(7, 3)),
    ]
    assert as_rows(other_detections) == [("blue", 1.0, cell_box(12, 9))]


@pytest.mark.parametrize("batch", [1, 2, None])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_batch_on_any_graph(batch, count, make_model, detect_once):
    model = make_model(tail="ultralytics", batch=batch)
    images = []
    expected = []
    for column in range(count):
        images.append(image(("green", column, 1)))
        expected.append([("green", 1.0, cell_box(column, 1))])
    assert rows_by_image(detect_once(model, images)) == expected


def test_images_of_different_sizes_share_a_batch(make_model, detect_once):
    small = image(("red", 1, 1))
    large = np.kron(image(("red", 2, 2)), np.ones((2, 2, 1), np.uint8))
    wide = np.concatenate([image(("red", 0, 0)), image()], axis=1)
    detections = detect_once(make_model(batch=None), [small, large, wide])
    assert detections[0].xyxy.tolist() == [cell_box(1, 1)]
    assert detections[1].xyxy.tolist() == [[32, 32, 48, 48]]
    assert detections[2].xyxy.tolist() == []  # shrunk to half a cell, and so to half the score


def test_rectangular_input(make_model, detect_once):
    model = make_model(size=None)
    detections = detect_once(model, [image(("red", 7, 3), size=(32, 64))], canvas=(32, 64))
    assert detections[0].xyxy.tolist() == [cell_box(7, 3)]


def test_selection_equals_the_graphs_own_top_k(make_model, random, detect_once):
    """On noise, where many scores lie close together: K = 16 rows of an in-graph TopK tail."""
    image = random.integers(0, 256, (64, 64, 3), np.uint8)
    model = make_model(tail="authors")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    tensor = image[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255)
    expected = session.run(None, {"images": tensor})[0][0]
    (detections,) = detect_once(model, [image], SelectionOptions(-1, 16, None, None))
    np.testing.assert_array_equal(detections.xyxy, expected[:, :4])
    np.testing.assert_array_equal(detections.score, expected[:, 4])
    np.testing.assert_array_equal(detections.class_id, expected[:, 5])


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["body", "transposed"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_logits_are_selected_by_themselves(tail, dtype, make_model, random, open_model):
    """The model's scores, 0 to 1, taken for logits: among them are many ties."""
    images = [random.integers(0, 256, (64, 64, 3), np.uint8), image(("red", 2, 3))]
    file = make_model(tail=tail, dtype=dtype, batch=None)
    of_logits = open_model(promising(file, score_form=ScoreForm.LOGITS))
    of_scores = open_model(file)
    for options in LOGIT_OPTIONS:
        detections = detect(of_logits, images, options)
        as_scores = replace(options, conf=logit_threshold(options.conf))
        assert options.conf == 1 or len(detections[0]), options
        for from_logits, from_scores in zip(
            detections, detect(of_scores, images, as_scores), strict=True
        ):
            np.testing.assert_array_equal(from_logits.xyxy, from_scores.xyxy, str(options))
            np.testing.assert_array_equal(from_logits.class_id, from_scores.class_id, str(options))
            np.testing.assert_array_equal(
                from_logits.score, sigmoid(from_scores.score), str(options)
            )
            assert (from_logits.score > np.float32(options.conf)).all(), options
    of_logits.close()
    of_scores.close()


THREE_CONFIDENCES = np.array([0.9, 0.3, 0.3], np.float32)  # of red, green and blue
LIMITED_TO_TWO = SelectionOptions(0.3, 2, None, None).with_conf_thresholds(THREE_CONFIDENCES)


@pytest.mark.parametrize("tail", ["body", "transposed"])
def test_a_class_below_its_confidence_takes_no_place(tail, make_model, detect_once):
    image = weighted_image(("red", 1, 1, 0.8), ("red", 3, 3, 0.7), ("blue", 5, 2, 0.6))
    (detections,) = detect_once(make_model(tail=tail), [image], LIMITED_TO_TWO)
    assert detections.class_name.tolist() == ["blue"]


def weighted_image(*squares):
    """A black image whose squares are of this share of the full level."""
    pixels = image(grey=0)
    for name, column, row, share in squares:
        square = image((name, column, row), grey=0)
        pixels += np.round(square * share).astype(np.uint8)
    return pixels


@pytest.mark.parametrize("nms_iou", [None, 0.5])
@pytest.mark.parametrize("multi_label", [MultiLabel.WITHOUT_NMS, MultiLabel.NEVER])
@pytest.mark.parametrize("form", [ScoreForm.FINAL, ScoreForm.LOGITS])
def test_confidences_of_classes_on_noise(
    nms_iou, multi_label, form, make_model, random, detect_once
):
    """The rows of the specification, which the CPU runs, on every backend."""
    image = random.integers(0, 256, (64, 64, 3), np.uint8)
    model = promising(make_model(), score_form=form)
    options = SelectionOptions(0, 12, None, nms_iou, multi_label=multi_label)
    options = options.with_conf_thresholds(np.array([0.6, 0.52, 0.55], np.float32))
    (detections,) = detect_once(model, [image], options)
    (expected,) = detect(open_backend("cpu", model), [image], options)
    assert len(expected) > 3
    np.testing.assert_array_equal(detections.xyxy, expected.xyxy)
    np.testing.assert_array_equal(detections.score, expected.score)
    np.testing.assert_array_equal(detections.class_id, expected.class_id)
    assert (detections.score > np.float32([0.6, 0.52, 0.55])[detections.class_id]).all()  # type: ignore[arg-type, index]


def test_several_selections_from_one_batch(make_model, open_model, random):
    """They may be read in any order, and the batch after is not disturbed."""
    images = [random.integers(0, 256, (64, 64, 3), np.uint8)]
    letterboxes = [Letterbox.fit((64, 64), (64, 64))]
    backend = open_model(make_model())
    selections = [WANTED, LIMITED_TO_TWO, replace(WANTED, conf=0.0)]
    buffer = backend.infer(backend.prepare(images, letterboxes))
    pending = [backend.select(buffer, letterboxes, options) for options in selections]
    other_detections = detect(backend, [image(("red", 2, 3))], WANTED)
    detections = []
    for wait in reversed(pending):
        detections.append(as_rows(wait()[0]))
    expected = []
    for options in reversed(selections):
        expected.append(as_rows(detect(backend, images, options)[0]))
    assert detections == expected
    assert as_rows(other_detections[0]) == [("red", 1.0, cell_box(2, 3))]
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("batch", [1, 2, None])
@pytest.mark.parametrize("rows", [16, None])
def test_a_graph_that_selects_for_itself(batch, dtype, rows, make_model, open_model):
    """As many rows as the contract says, or as only a run tells; three images, some batches."""
    file = make_model(tail="authors", batch=batch, dtype=dtype)
    model = promising(file, file.read_bytes(), layout=Layout.ROWS, anchor_count=rows)
    backend = open_model(model)
    images = [image(("red", 1, 1), ("blue", 5, 2)), image(), image(("green", 7, 7))]
    red = ("red", 1.0, cell_box(1, 1))
    blue = ("blue", 1.0, cell_box(5, 2))
    green = ("green", 1.0, cell_box(7, 7))
    for options, expected in (
        (WANTED, [[red, blue], [], [green]]),
        (replace(WANTED, max_det=1), [[red], [], [green]]),
        (replace(WANTED, class_ids=frozenset({0, 1})), [[red], [], [green]]),
        (replace(WANTED, nms_iou=0.5), [[red, blue], [], [green]]),
        (replace(WANTED, conf=1), [[], [], []]),
        (
            WANTED.with_conf_thresholds(np.array([1.0, 0.5, 0.5], np.float32)),
            [[blue], [], [green]],
        ),
    ):
        detections = detect(backend, images, options)
        assert rows_by_image(detections) == expected, options
    backend.close()


@pytest.mark.parametrize("output", [[1, 7, 0], [1, 0, 7], [1, 0, 6]])
@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize("nms_iou", [None, 0.5])
def test_an_output_without_anchors_or_rows(output, is_declared, nms_iou, make_model, detect_once):
    model = promising(
        make_model(),
        empty_output(output),
        layout=Layout.ROWS if output[2] == 6 else Layout.BODY,
        anchors_first=output[1] == 0,
        anchor_count=0 if is_declared else None,
        input_name="images",
    )
    options = SelectionOptions(0.25, 300, frozenset({1}), nms_iou)
    (detections,) = detect_once(model, [image()], options)
    assert len(detections) == 0
    assert detections.names == colour_model.NAMES


def empty_output(output):
    """A graph that ends in a tensor of this shape, which holds nothing."""
    shape = ", ".join(map(str, output))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    empty (float[1, 3, 64, 64] images) => (float[a, b, c] output)
    <int64[1] zero = {{0}}, int64[3] shape = {{{shape}}}>
    {{
        nothing = Slice (images, zero, zero)
        output = Reshape <allowzero = 1> (nothing, shape)
    }}"""
    return onnx.parser.parse_model(text).SerializeToString()


def test_a_failing_network_raises_inference_error(make_model, detect_once):
    with pytest.raises(InferenceError, match=r"\[1, 3, 32, 32\]"):
        detect_once(make_model(size=64), [image()], canvas=(32, 32))


def test_nan_is_reported(make_model):
    """On the CPU, whose buffers a test can modify; backend/cuda has the GPU's test."""
    backend = open_backend("cpu", prepare(make_model(dtype=np.float16)))
    letterbox = Letterbox.fit((64, 64), (64, 64))
    tensor = backend.prepare([image()], [letterbox])
    tensor[0, :, :8, :8] = np.nan
    with pytest.warns(DetcliWarning, match="NaN"):
        backend.select(backend.infer(tensor), [letterbox], WANTED)()


def test_auto_opens_a_working_device(make_model):
    assert open_backend("auto", prepare(make_model())).device in {"cpu", "openvino:CPU"}


def test_cuda_is_refused_rather_than_replaced(make_model):
    for device in ("cuda", "cuda:0"):
        with pytest.raises(DeviceError) as caught:
            open_backend(device, prepare(make_model()))
        assert caught.value.exit_code == 5
        assert "--device cpu" in caught.value.hint
