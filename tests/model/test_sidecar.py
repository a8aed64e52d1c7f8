"""What lies beside a model, well formed and not."""

import json
import os

import pytest

from detcli.core.errors import ModelError
from detcli.model.contract import Interpolation, Resize
from detcli.model.sidecar import MAX_BYTES, Sidecar

DETR = {
    "image_processor_type": "DetrImageProcessor",
    "size": {"shortest_edge": 800, "longest_edge": 1333},
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 2,
}


@pytest.fixture
def model_folder(tmp_path):
    (tmp_path / "onnx").mkdir()
    return tmp_path


def beside(folder, processor=None, config=None):
    for name, content in (("preprocessor_config.json", processor), ("config.json", config)):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return Sidecar.read(folder / "model.onnx")


def test_nothing_there(model_folder):
    assert beside(model_folder) is None


def test_the_folder_above_onnx_counts_and_no_other(model_folder, monkeypatch):
    beside(model_folder, DETR)
    assert Sidecar.read(model_folder / "onnx" / "model.onnx") is not None
    (model_folder / "other").mkdir()
    assert Sidecar.read(model_folder / "other" / "model.onnx") is None
    monkeypatch.chdir(model_folder / "onnx")
    assert Sidecar.read(type(model_folder)("model.onnx")).steps


def test_the_nearer_folder_counts(model_folder):
    beside(model_folder, DETR)
    sidecar = beside(model_folder / "onnx", DETR | {"size": {"height": 300, "width": 400}})
    assert sidecar.steps["resize"] == {"resize": Resize.STRETCH}
    assert sidecar.size == (300, 400)


FITTED = {"height": 640, "width": 640}
LIMITED = {"size": {"max_height": 640, "max_width": 640}}
PADDED = LIMITED | {"do_pad": True, "pad_size": FITTED}
AS_THEY_ARE = {"do_normalize": False}
HALVES = {"image_mean": 0.5, "image_std": 0.5}
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PLAIN = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def edges(shortest, longest, multiple=1):
    return {"resize": "shortest-edge", "edges": (shortest, longest), "multiple": multiple}


def values(mean_and_std, scale=1 / 255):
    mean, std = mean_and_std
    return {"scale": scale, "mean": mean, "std": std}


@pytest.mark.parametrize(
    ("changed", "step", "fields"),
    [
        ({}, "resize", edges(800, 1333)),
        ({"image_processor_type": "YolosImageProcessor"}, "resize", edges(800, 1333, 16)),
        ({"size": {"shortest_edge": 480}}, "resize", edges(480, 1333)),
        ({"size": 600, "max_size": 700}, "resize", edges(600, 700)),
        ({"size": 600, "image_processor_type": "ViTImageProcessor"}, "resize", None),
        ({"size": {"height": 320, "width": 640}}, "resize", {"resize": "stretch"}),
        (PADDED, "resize", {"resize": "corner", "pad": 114}),
        (LIMITED, "resize", None),
        ({"size": {"longest_edge": 640}}, "resize", None),
        ({"size": None}, "resize", None),
        ({"do_resize": False}, "resize", {"resize": "none"}),
        ({}, "values", values(IMAGENET)),
        (AS_THEY_ARE, "values", values(PLAIN)),
        (AS_THEY_ARE | {"do_rescale": False}, "values", values(PLAIN, 1.0)),
        (AS_THEY_ARE | {"rescale_factor": 0.5}, "values", values(PLAIN, 0.5)),
        ({"image_mean": None, "image_std": None}, "values", values(IMAGENET)),
        (HALVES, "values", values(((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))),
        ({}, "channels", {"bgr": False}),
        ({"do_flip_channel_order": True}, "channels", {"bgr": True}),
        ({"resample": 2}, "interpolation", {"interpolation": Interpolation.BILINEAR}),
        ({"resample": 3}, "interpolation", {"interpolation": Interpolation.BICUBIC}),
        ({"resample": 1}, "interpolation", None),
        ({"resample": 0}, "interpolation", None),
    ],
)
def test_how_images_are_prepared(model_folder, changed, step, fields):
    assert beside(model_folder, DETR | changed).steps.get(step) == fields


@pytest.mark.parametrize(
    ("changed", "size"),
    [
        ({}, None),
        ({"size": {"height": 320, "width": 640}}, (320, 640)),
        (PADDED, (640, 640)),
        (LIMITED, None),
    ],
)
def test_the_size_of_the_input(model_folder, changed, size):
    assert beside(model_folder, DETR | changed).size == size


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
def test_class_names(model_folder, labels, names):
    sidecar = beside(model_folder, config={"model_type": "detr", "id2label": labels})
    assert sidecar.names == names
    assert sidecar.steps == {}


@pytest.mark.parametrize("content", ["{", "[1]", "\x00", '{"port": 80}', "[" * 100_000])
def test_a_config_of_another_program_is_no_sidecar(model_folder, content):
    (model_folder / "config.json").write_text(content)
    assert beside(model_folder) is None


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
def test_values_that_make_no_sense_are_refused(model_folder, changed):
    with pytest.raises(ModelError, match=r"preprocessor_config\.json: ") as caught:
        beside(model_folder, DETR | changed)
    assert caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"9" * 9999,
        b" " * (MAX_BYTES + 1),
    ],
    ids=lambda content: content[:4].hex(),
)
def test_damaged_files_are_refused(model_folder, content):
    (model_folder / "preprocessor_config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"preprocessor_config\.json") as caught:
        beside(model_folder)
    assert caught.value.hint


def test_a_damaged_config_beside_a_processor_is_refused(model_folder):
    (model_folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
        beside(model_folder, DETR)


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_refused_at_once(model_folder, kind):
    path = model_folder / "preprocessor_config.json"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(ModelError, match=r"preprocessor_config\.json"):
        beside(model_folder)


def test_the_hash_follows_the_content_of_both_files(model_folder):
    hashes = {beside(model_folder, DETR).sha256}
    hashes.add(beside(model_folder, DETR, {"model_type": "detr"}).sha256)
    hashes.add(beside(model_folder, DETR | {"do_normalize": False}).sha256)
    hashes.add(beside(model_folder, DETR, {"model_type": "yolos"}).sha256)
    (model_folder / "config.json").unlink()
    either = DETR | {"model_type": "detr"}
    hashes.add(beside(model_folder, either).sha256)
    (model_folder / "preprocessor_config.json").rename(model_folder / "config.json")
    hashes.add(beside(model_folder).sha256)  # the same content by another name
    assert len(hashes) == 6
