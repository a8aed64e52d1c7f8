# mypy: disable-error-code=arg-type
"""Which source settles each part of a preprocessing."""

import json
from dataclasses import replace

import onnx
import pytest
from model.test_contract import STATIC
from model.test_input_nodes import MEAN, STD, graph

from detcli.core.errors import ModelError
from detcli.model.contract import Interpolation, Preprocessing, Resize
from detcli.model.graph import GraphIndex
from detcli.model.inputs import find_inputs
from detcli.model.preprocessing import BY_FAMILY, METADATA_KEY
from detcli.model.preprocessing_sources import with_preprocessing
from detcli.model.sidecar import Sidecar

IMAGENET = {"mean": tuple(MEAN), "std": tuple(STD)}
DIVIDES = "t = Div(x, by255)"
NORMALISES = "a = Div(x, by255) b = Sub(a, mean) t = Div(b, std)"
SWAPS = "t = Gather<axis = 1>(x, bgr)"
CAST = "t = Cast<to = 1>(x)"
YOLO = Preprocessing()
YOLOX = Preprocessing(Resize.CORNER, scale=1.0, bgr=True)
RAW = Preprocessing(scale=1.0)


def resolved(nodes="", family=YOLO, metadata=None, beside=None, **fields):
    return resolved_of(graph(nodes, **fields), family, metadata, beside)


def resolved_of(model, family, metadata=None, beside=None):
    index = GraphIndex(model.graph)
    contract = replace(
        STATIC,
        preprocessing=family or Preprocessing(),
        preprocessing_sources=BY_FAMILY if family else (),
    )
    return with_preprocessing(contract, index, find_inputs(index)[0], metadata or {}, beside)


@pytest.fixture
def sidecar(tmp_path):
    def write(**fields):
        processor = {"size": {"height": 320, "width": 320}, "resample": 2} | fields
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
        return Sidecar.read(tmp_path / "model.onnx")

    return write


@pytest.fixture
def normalising(sidecar):
    return sidecar(do_normalize=True, image_mean=MEAN, image_std=STD)


def test_the_family_alone():
    contract = resolved(family=YOLOX)
    assert contract.preprocessing == YOLOX
    assert dict(contract.preprocessing_sources) == dict.fromkeys(
        ("resize", "interpolation", "values", "channels"), "the family's rule"
    )
    assert contract.unknown_preprocessing == ()


def test_nothing_at_all():
    contract = resolved(family=None)
    assert contract.preprocessing_sources == ()
    assert contract.unknown_preprocessing == ("resize", "interpolation", "values", "channels")


def test_a_file_beside_the_model_comes_before_the_family(normalising):
    contract = resolved(family=YOLOX, beside=normalising, layout="any")
    assert contract.preprocessing == Preprocessing(
        Resize.STRETCH, Interpolation.BILINEAR, **IMAGENET
    )
    sources = dict(contract.preprocessing_sources)
    assert set(sources.values()) == {"preprocessor_config.json"}
    assert contract.default_size == (320, 320)


def test_the_metadata_comes_before_all(normalising):
    metadata = {METADATA_KEY: "corner,scale=1,mean=1:2:3,std=1:1:1"}
    contract = resolved(NORMALISES, metadata=metadata, beside=normalising)
    assert contract.preprocessing == Preprocessing(
        Resize.CORNER, Interpolation.BILINEAR, scale=1.0, mean=(1.0, 2.0, 3.0)
    )
    assert dict(contract.preprocessing_sources)["values"] == "metadata detcli.preprocess"
    assert dict(contract.preprocessing_sources)["interpolation"] == "preprocessor_config.json"


def test_malformed_metadata_is_refused():
    with pytest.raises(ModelError, match=r"metadata .* malformed: detcli\.preprocess") as caught:
        resolved(metadata={METADATA_KEY: "streched"})
    assert "export it again" in caught.value.hint


@pytest.mark.parametrize(
    ("nodes", "family", "fed"),
    [
        (DIVIDES, YOLO, RAW),
        (NORMALISES, YOLO, RAW),
        ("a = Sub(x, mean) t = Div(a, std)", YOLO, YOLO),
        (SWAPS, YOLO, Preprocessing(bgr=True)),
        (SWAPS, YOLOX, Preprocessing(Resize.CORNER, scale=1.0)),
        (
            "a = Div(x, by255) t = Gather<axis = 1>(a, bgr)",
            YOLO,
            Preprocessing(scale=1.0, bgr=True),
        ),
        (
            SWAPS,
            Preprocessing(**IMAGENET),
            Preprocessing(mean=tuple(MEAN[::-1]), std=tuple(STD[::-1]), bgr=True),
        ),
        ("a = Sub(x, mean_bgr) t = Gather<axis = 1>(a, bgr)", YOLO, Preprocessing(bgr=True)),
        ("t = Mul(x, by255)", YOLOX, Preprocessing(Resize.CORNER, bgr=True)),
    ],
)
def test_nodes_at_the_input_are_fed_what_they_want(nodes, family, fed):
    assert resolved(nodes, family).preprocessing == fed


def test_what_a_graph_does_itself_is_not_done_twice(normalising):
    contract = resolved(NORMALISES, beside=normalising)
    assert contract.preprocessing == Preprocessing(
        Resize.STRETCH, Interpolation.BILINEAR, scale=1.0
    )
    assert dict(contract.preprocessing_sources)["values"] == "nodes at the input"


def test_a_division_alone_leaves_the_rest_to_us(normalising):
    """What is fed and the division together give what the file beside the model asks for."""
    fed = resolved(DIVIDES, beside=normalising).preprocessing
    for mean, std, mean_fed, std_fed in zip(MEAN, STD, fed.mean, fed.std, strict=True):
        for level in (0, 100, 255):
            network_input = (level * fed.scale - mean_fed) / std_fed
            assert network_input / 255 == pytest.approx((level / 255 - mean) / std)


def test_whole_numbers_are_fed_as_they_are(normalising):
    normalised = "c = Cast<to = 1>(x) a = Div(c, by255) b = Sub(a, mean) t = Div(b, std)"
    for nodes in (CAST, normalised):
        contract = resolved(nodes, beside=normalising, dtype="uint8")
        assert contract.preprocessing.scale == 1.0
        assert contract.preprocessing.mean == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("text", ["scale=0.00392156862745098", "mean=1:2:3", "std=2:2:2"])
def test_whole_numbers_hold_nothing_but_levels(text):
    metadata = {METADATA_KEY: f"stretch,{text}"}
    with pytest.raises(ModelError, match=rf"detcli\.preprocess stretch,{text}: .* whole numbers"):
        resolved(CAST, metadata=metadata, dtype="uint8")


def test_a_constant_that_shows_nothing_leaves_values_open():
    assert resolved("t = Div(x, by2)").unknown_preprocessing == ("values",)


def test_a_graph_that_resizes_takes_the_whole_image():
    resize = "t = Resize(x, , , sides)"
    assert resolved(resize, layout="any").preprocessing.resize is Resize.NONE
    assert resolved(resize).preprocessing.resize is Resize.LETTERBOX  # its input is fixed


def test_a_fixed_input_cannot_follow_the_image(sidecar):
    beside = sidecar(size={"shortest_edge": 800, "longest_edge": 1333})
    assert resolved(beside=beside).preprocessing.resize is Resize.LETTERBOX
    assert resolved(beside=beside, layout="any").preprocessing.edges == (800, 1333)


def test_a_filter_that_detcli_lacks_stays_open(sidecar):
    beside = sidecar(resample=1)
    assert resolved(family=None, beside=beside).unknown_preprocessing == ("interpolation",)


def test_what_ultralytics_exported_is_prepared_as_there(normalising):
    """A hub's file beside it says what another program feeds."""
    contract = resolved(metadata={"author": "Ultralytics"}, beside=normalising)
    assert contract.preprocessing == YOLO


def test_a_folder_may_ask_for_blue_first(sidecar):
    beside = sidecar(do_normalize=False, do_flip_channel_order=True)
    assert resolved(beside=beside).preprocessing.bgr
    assert not resolved(SWAPS, beside=beside).preprocessing.bgr


DESCRIBED = (
    "hf-detr-c91 hf-dfine-c80 hf-lwdetr-c91 hf-rtdetr-c80 hf-rtdetrv2-c4 hf-yolos-c91 tf-od-c20 "
    "torchvision-ssd-c21 x-detr-meanstd-inside x-hf-dfine-slim x-hf-rtdetr-renamed-swapped "
    "x-yolov8-div255"
).split()


@pytest.mark.parametrize("name", DESCRIBED)
def test_files_that_say_it_themselves(name, shared):
    """Made by the families' own packages, described by who made them."""
    described = json.loads(shared(f"families/{name}.json").read_text())
    path = shared(f"families/{described['file']}")
    expected = described["preprocess"]
    contract = resolved_of(onnx.load(path), None, beside=Sidecar.read(path))
    fed = contract.preprocessing
    assert fed.scale == expected["scale"]
    assert fed.mean == tuple(expected["mean"] or (0, 0, 0))
    assert fed.std == tuple(expected["std"] or (1, 1, 1))
    assert not fed.bgr
    assert "values" not in contract.unknown_preprocessing
    if "resize" not in contract.unknown_preprocessing:
        assert fed.resize == expected["resize"].replace("_", "-")
        assert contract.default_size == tuple(expected["size"] or STATIC.default_size)
    if "shortest_edge" in expected:
        assert fed.edges == (expected["shortest_edge"], expected["longest_edge"])


def test_ultralytics_resizes_every_model_by_opencv():
    rtdetr = Preprocessing(Resize.STRETCH, Interpolation.BILINEAR)
    contract = resolved(family=rtdetr, metadata={"author": "Ultralytics"})
    assert contract.preprocessing == Preprocessing(Resize.STRETCH)
    assert resolved(family=rtdetr).preprocessing == rtdetr
