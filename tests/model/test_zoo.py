"""Names of models, and the files behind them."""

import json
from pathlib import Path

import pytest
import query_model
from hub_server import COMMIT, NEWER

from detcli.core.errors import ModelError
from detcli.model import zoo
from detcli.model.contract import Interpolation
from detcli.model.file import WITHOUT_SIDECAR, ModelFile
from detcli.model.zoo import find, model_path, pull

YOLOV10 = ["yolov10n", "yolov10s", "yolov10m", "yolov10b", "yolov10l", "yolov10x"]


@pytest.fixture
def bundled_file(tmp_path, monkeypatch):
    """A stand-in for the model that comes with detcli."""
    monkeypatch.setattr(zoo, "BUNDLED", tmp_path / "bundled")
    (tmp_path / "bundled").mkdir()
    path = tmp_path / "bundled/codes.onnx"
    path.write_bytes(b"codes")
    return path


@pytest.fixture(autouse=True)
def _filled(hub):
    hub.add("yolov10n", b"nano", half=b"na")
    hub.add("yolov10s", b"small")


def test_names_repositories_and_licences():
    published = [model for model in zoo.MODELS.values() if model.repository]
    names = [model.name for model in published]
    assert names[-6:] == YOLOV10
    assert set(names) > {"dfine-n", "dfine-s", "dfine-m", "dfine-l", "dfine-x"}
    assert set(names) > {"rfdetr-nano", "rfdetr-small", "rfdetr-medium", "rfdetr-large"}
    for model in published:
        assert model.repository.startswith("onnx-community/")
        assert model.licence == ("AGPL-3.0" if model.name.startswith("yolo") else "Apache-2.0")
        assert model.revision == "main" or model.file().pinned
    assert zoo.MODELS["yolov10n"].revision == COMMIT
    assert zoo.DEFAULT in zoo.MODELS


@pytest.mark.parametrize(
    ("half", "name", "file", "content"),
    [(False, "yolov10n", "model.onnx", b"nano"), (True, "yolov10n-fp16", "model_fp16.onnx", b"na")],
)
def test_a_named_model_is_fetched_on_first_use(hub, half, name, file, content):
    model = find("yolov10n", half=half)
    assert model.path.read_bytes() == content
    assert model.name == name
    assert model.half == half
    assert model.path.name == file
    hub.requests.clear()
    assert find("yolov10n", half=half) == model
    assert hub.requests == []  # not even about a newer version


def test_a_path_wins_over_a_name_and_a_folder_does_not(tmp_path, monkeypatch, hub):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "yolov10n").write_bytes(b"mine")
    assert find("yolov10n", half=True) == ModelFile(Path("yolov10n"), "yolov10n")
    assert hub.requests == []
    (tmp_path / "yolov10n").unlink()
    (tmp_path / "yolov10n").mkdir()
    assert find("yolov10n").path.read_bytes() == b"nano"


@pytest.mark.parametrize(
    ("name", "reason", "close"),
    [
        ("nothing", "nothing: .*no model has that name", ""),
        ("x" * 5000, "File name too long", ""),
        ("a\0b", "null", ""),
        ("yolo10n", "yolo10n: No such file", "yolov10n"),
        ("YOLOv10n.onnx", "YOLOv10n.onnx: No such file", "yolov10n"),
    ],
)
def test_neither_a_path_nor_a_name(name, reason, close, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=f"cannot read the model .*{reason}") as error:
        find(name)
    hint = error.value.hint
    if close:
        assert hint.startswith(f"did you mean {close}? give the path of an ONNX file")
        assert hint.endswith("or a name that detcli models list shows")
    else:
        assert hint.startswith("give the path of an ONNX file")
        for model_name in zoo.MODELS:
            assert model_name in hint


@pytest.mark.parametrize("name", ["folder/none.onnx", "film.mp4", "folder/none"])
def test_the_hint_for_a_path_has_not_all_names(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="No such file") as error:
        find(name)
    shown_names = "a name that detcli models list shows"
    assert error.value.hint == f"give the path of an ONNX file, or {shown_names}"


def test_the_bundled_model_needs_no_hub(bundled_file, hub):
    for half in (False, True):
        assert find("codes", half=half) == ModelFile(bundled_file, "codes")
    assert pull("codes") == model_path("codes") == bundled_file
    assert hub.requests == []


@pytest.mark.parametrize("act", [find, pull, model_path])
def test_what_the_bundled_model_lacks_is_said(act, bundled_file):
    if act is not find:  # which takes what there is
        with pytest.raises(ModelError, match="codes has no float16 file"):
            act("codes", half=True)
    bundled_file.unlink()
    with pytest.raises(ModelError, match=r"codes\.onnx is missing") as error:
        act("codes")
    assert "reinstall detcli" in error.value.hint


@pytest.mark.parametrize("act", [pull, model_path])
def test_only_names_can_be_pulled_and_located(act):
    with pytest.raises(ModelError, match=r"^'/etc/hosts': no model has that name") as error:
        act("/etc/hosts")  # which exists
    assert "path" not in error.value.hint


def test_where_does_not_fetch(hub):
    with pytest.raises(ModelError, match="yolov10n-fp16 has not been fetched") as error:
        model_path("yolov10n", half=True)
    assert error.value.hint == "run: detcli models pull yolov10n --half"
    assert hub.requests == []
    assert pull("yolov10n", half=True) == model_path("yolov10n", half=True)


def test_pull_updates_only_files_of_a_branch(hub):
    pull("yolov10n")
    pull("yolov10s")
    hub.requests.clear()
    hub.main = NEWER
    hub.add("yolov10s", b"better")
    pull("yolov10n")
    assert hub.requests == []
    assert find("yolov10s").path.read_bytes() == b"small"
    assert pull("yolov10s").read_bytes() == b"better"
    assert find("yolov10s").path.read_bytes() == b"better"


def test_pull_uses_the_cached_file_if_the_hub_is_down_but_no_damaged_one(hub, caplog):
    path = pull("yolov10s")
    pinned = pull("yolov10n")
    pinned.resolve().write_bytes(b"nanx")
    assert pull("yolov10n").read_bytes() == b"nano"
    assert "damaged" in caplog.text
    pinned.resolve().write_bytes(b"nanx")
    hub.faults.status = 503
    caplog.clear()
    assert pull("yolov10s") == path
    assert "it answers 503" in caplog.text
    assert "using the cached file" in caplog.text
    with pytest.raises(ModelError, match="it answers 503"):
        pull("yolov10n")


def test_a_cache_without_permission(monkeypatch):
    pull("yolov10n")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "model.onnx")

    monkeypatch.setattr("detcli.model.hub.sha256", refuse)
    with pytest.raises(ModelError, match=r"model\.onnx: Permission denied"):
        pull("yolov10n")


def test_what_lies_beside_a_model_that_has_no_other_files_is_not_its(tmp_path):
    for model in zoo.MODELS.values():
        if model.repository:
            has_other_files = bool(model.beside)
            matches = WITHOUT_SIDECAR.fullmatch(model.file().folder) is not None
            assert matches != has_other_files
    path = tmp_path / "models--onnx-community--yolov10n/snapshots/abc/onnx/model.onnx"
    path.parent.mkdir(parents=True)
    (path.parent / "config.json").write_text('{"model_type": "yolo"}')
    assert ModelFile(path, "model").sidecar is None
    elsewhere = ModelFile(path.parents[4] / "model.onnx", "model")
    (path.parents[4] / "config.json").write_text('{"model_type": "yolo"}')
    assert elsewhere.sidecar.contents == {"config.json": b'{"model_type": "yolo"}'}


@pytest.fixture
def queries(hub, monkeypatch):
    """A detector of queries on the hub, with the files that say how to feed it."""
    model = zoo.ZooModel("queries", "Apache-2.0", "onnx-community/queries", "main", None,
                         zoo.CONFIGURATION)  # fmt: skip
    monkeypatch.setitem(zoo.MODELS, "queries", model)
    hub.add("queries", query_model.build().SerializeToString())
    names = {"id2label": {0: "r", 1: "g", 2: "b"}}
    processor = {"do_resize": True, "size": {"height": 64, "width": 64}, "resample": 3}
    for name, content in zip(zoo.CONFIGURATION, (names, processor), strict=True):
        hub.files["onnx-community/queries", name] = json.dumps(content).encode()
    return model


@pytest.mark.usefixtures("queries")
def test_what_belongs_to_a_model_is_fetched_with_it(hub):
    file = find("queries")
    contract = ModelFile.read(file.path).detector()
    assert contract.names == ("r", "g", "b")
    assert contract.names_origin == "config.json"
    assert contract.preprocessing.interpolation is Interpolation.BICUBIC
    hub.requests.clear()
    assert find("queries") == file
    assert hub.requests == []


def test_a_model_without_what_belongs_to_it_is_not_complete(queries):
    path = find("queries").path
    queries.neighbours()[0].cached().unlink()
    assert zoo.local_path(queries, half=False) is None
    with pytest.raises(ModelError, match="has not been fetched"):
        model_path("queries")
    assert find("queries").path == path


@pytest.mark.usefixtures("queries")
def test_what_belongs_to_a_model_is_checked_against_its_record(hub):
    hub.faults.contents["config.json"] = b"{}"
    with pytest.raises(ModelError, match="the content has git name"):
        find("queries")
