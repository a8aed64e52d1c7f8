"""What lies beside a model, well formed and not."""

import json
import os

import pytest

from detcli.core.errors import ModelError
from detcli.model.contract import Interpolation, Preprocessing, Resize
from detcli.model.preprocessing import MAX_BYTES, Resizing, Sidecar

DETR = {
    "image_processor_type": "DetrImageProcessor",
    "size": {"shortest_edge": 800, "longest_edge": 1333},
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 2,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "onnx").mkdir()
    return tmp_path


def beside(folder, processor=None, config=None):
    for name, content in (("preprocessor_config.json", processor), ("config.json", config)):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return Sidecar.read(folder / "model.onnx")


def test_nothing_there(folder):
    assert beside(folder) is None


def test_the_folder_above_onnx_counts_and_no_other(folder, monkeypatch):
    beside(folder, DETR)
    assert Sidecar.read(folder / "onnx" / "model.onnx") is not None
    (folder / "other").mkdir()
    assert Sidecar.read(folder / "other" / "model.onnx") is None
    monkeypatch.chdir(folder / "onnx")
    assert Sidecar.read(type(folder)("model.onnx")).path == folder / "preprocessor_config.json"


def test_the_nearer_folder_counts(folder):
    beside(folder, DETR)
    found = beside(folder / "onnx", DETR | {"size": {"height": 300, "width": 400}})
    assert found.resizing == Resizing(Resize.STRETCH, (300, 400))


@pytest.mark.parametrize(
    ("changed", "resizing"),
    [
        ({}, Resizing(Resize.SHORTEST_EDGE, edges=(800, 1333))),
        (
            {"image_processor_type": "YolosImageProcessor"},
            Resizing(Resize.SHORTEST_EDGE, edges=(800, 1333), multiple=16),
        ),
        ({"size": {"shortest_edge": 480}}, Resizing(Resize.SHORTEST_EDGE, edges=(480, 1333))),
        ({"size": 600, "max_size": 700}, Resizing(Resize.SHORTEST_EDGE, edges=(600, 700))),
        ({"size": 600, "image_processor_type": "ViTImageProcessor"}, None),
        ({"size": {"height": 320, "width": 640}}, Resizing(Resize.STRETCH, (320, 640))),
        (
            {
                "size": {"max_height": 640, "max_width": 640},
                "do_pad": True,
                "pad_size": {"height": 640, "width": 640},
            },
            Resizing(Resize.CORNER, (640, 640)),
        ),
        ({"size": {"max_height": 640, "max_width": 640}}, None),
        ({"size": {"longest_edge": 640}}, None),
        ({"size": None}, None),
        ({"do_resize": False}, Resizing(Resize.NONE)),
    ],
)
def test_how_pictures_are_fitted(folder, changed, resizing):
    assert beside(folder, DETR | changed).resizing == resizing


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.mark.parametrize(
    ("changed", "values"),
    [
        ({}, Preprocessing(**IMAGENET)),
        ({"do_normalize": False}, Preprocessing()),
        ({"do_rescale": False, "do_normalize": False}, Preprocessing(scale=1.0)),
        (
            {"do_normalize": False, "do_flip_channel_order": True},
            Preprocessing(bgr=True),
        ),
        ({"rescale_factor": 0.5, "do_normalize": False}, Preprocessing(scale=0.5)),
        ({"image_mean": None, "image_std": None}, Preprocessing(**IMAGENET)),
        (
            {"image_mean": 0.5, "image_std": 0.5},
            Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        ),
    ],
)
def test_values(folder, changed, values):
    assert beside(folder, DETR | changed).values == values


@pytest.mark.parametrize(
    ("number", "interpolation"),
    [(2, Interpolation.BILINEAR), (3, Interpolation.BICUBIC), (1, None), (0, None)],
)
def test_filters(folder, number, interpolation):
    assert beside(folder, DETR | {"resample": number}).interpolation is interpolation


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ({"1": "b", "0": "a"}, ("a", "b")),
        ({"0": "a", "2": "c"}, None),
        ({"0": 1}, None),
        ([], None),
        ({}, None),
    ],
)
def test_class_names(folder, labels, names):
    found = beside(folder, config={"model_type": "detr", "id2label": labels})
    assert (found.names, found.model_type, found.path) == (names, "detr", None)


@pytest.mark.parametrize("content", ["{", "[1]", "\x00", '{"port": 80}', "[" * 100_000])
def test_a_config_of_another_program_is_no_sidecar(folder, content):
    (folder / "config.json").write_text(content)
    assert beside(folder) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"image_std": [0.1, 0, 0.1]},
        {"image_std": [0.1, 0.1]},
        {"image_mean": "0.5"},
        {"image_mean": [float("nan"), 0, 0]},
        {"image_mean": [10**400, 0, 0]},
        {"image_mean": {"r": 1}},
        {"rescale_factor": None},
        {"rescale_factor": "1/255"},
        {"do_normalize": "yes"},
        {"size": {"height": 320, "width": -1}},
        {"size": {"height": 320, "width": 10**9}},
        {"size": {"height": 320.5, "width": 320}},
        {"size": {"height": True, "width": 320}},
        {"size": {"shortest_edge": 0, "longest_edge": 9}},
        {"resample": "bilinear"},
    ],
)
def test_values_that_make_no_sense_are_refused(folder, changed):
    with pytest.raises(ModelError, match=r"preprocessor_config\.json: ") as caught:
        beside(folder, DETR | changed)
    assert caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 100_000),
        *(b"9" * 9999, b" " * (MAX_BYTES + 1)),
    ],
    ids=lambda content: content[:4].hex(),
)
def test_damaged_files_are_refused(folder, content):
    (folder / "preprocessor_config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"preprocessor_config\.json") as caught:
        beside(folder)
    assert caught.value.hint


def test_a_damaged_config_beside_a_processor_is_refused(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
        beside(folder, DETR)


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_refused_at_once(folder, kind):
    path = folder / "preprocessor_config.json"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(ModelError, match=r"preprocessor_config\.json"):
        beside(folder)


def test_the_hash_follows_the_content_of_both_files(folder):
    seen = {beside(folder, DETR).sha256}
    seen.add(beside(folder, DETR, {"model_type": "detr"}).sha256)
    seen.add(beside(folder, DETR | {"do_normalize": False}).sha256)
    seen.add(beside(folder, DETR, {"model_type": "yolos"}).sha256)
    assert len(seen) == 4
