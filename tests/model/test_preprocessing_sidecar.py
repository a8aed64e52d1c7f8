"""What lies beside a model, well formed and not."""

import json
import os
from dataclasses import replace

import pytest

from detcli.core.errors import ModelError
from detcli.model.contract import Interpolation, Preprocessing, Resize
from detcli.model.preprocessing import MAX_BYTES, Sidecar

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
    assert Sidecar.read(type(folder)("model.onnx")).parts


def test_the_nearer_folder_counts(folder):
    beside(folder, DETR)
    found = beside(folder / "onnx", DETR | {"size": {"height": 300, "width": 400}})
    assert (found.parts["resize"], found.size) == ({"resize": Resize.STRETCH}, (300, 400))


FITTED = {"height": 640, "width": 640}
LIMITED = {"size": {"max_height": 640, "max_width": 640}}


def edges(shortest, longest, multiple=1):
    return {"resize": "shortest-edge", "edges": (shortest, longest), "multiple": multiple}


@pytest.mark.parametrize(
    ("changed", "fields", "size"),
    [
        ({}, edges(800, 1333), None),
        ({"image_processor_type": "YolosImageProcessor"}, edges(800, 1333, 16), None),
        ({"size": {"shortest_edge": 480}}, edges(480, 1333), None),
        ({"size": 600, "max_size": 700}, edges(600, 700), None),
        ({"size": 600, "image_processor_type": "ViTImageProcessor"}, None, None),
        ({"size": {"height": 320, "width": 640}}, {"resize": "stretch"}, (320, 640)),
        (LIMITED | {"do_pad": True, "pad_size": FITTED}, {"resize": "corner", "pad": 114}, FITTED),
        (LIMITED, None, None),
        ({"size": {"longest_edge": 640}}, None, None),
        ({"size": None}, None, None),
        ({"do_resize": False}, {"resize": "none"}, None),
    ],
)
def test_how_pictures_are_fitted(folder, changed, fields, size):
    found = beside(folder, DETR | changed)
    assert found.parts.get("resize") == fields
    assert found.size == (tuple(size.values()) if isinstance(size, dict) else size)


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
    parts = beside(folder, DETR | changed).parts
    assert replace(Preprocessing(), **parts["values"], **parts["channels"]) == values


@pytest.mark.parametrize(
    ("number", "interpolation"),
    [(2, Interpolation.BILINEAR), (3, Interpolation.BICUBIC), (1, None), (0, None)],
)
def test_filters(folder, number, interpolation):
    found = beside(folder, DETR | {"resample": number}).parts.get("interpolation", {})
    assert found.get("interpolation") is interpolation


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
    assert (found.names, found.parts) == (names, {})


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
