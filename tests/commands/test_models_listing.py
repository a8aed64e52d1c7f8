"""What `models list` finds."""

import pytest
from hub_server import COMMIT

from detcli.commands.models import FileState, ListedFile, listing, render
from detcli.errors import UsageError
from detcli.model import zoo


@pytest.fixture(autouse=True)
def _bundled(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "BUNDLED", tmp_path)
    (tmp_path / "codes.onnx").write_bytes(b"codes")


def by_name():
    return {model.name: model for model in listing().models}


def test_before_anything_is_fetched(hub, tmp_path):
    models = by_name()
    assert list(models) == list(zoo.MODELS)
    assert models["codes"].files == (
        ListedFile(half=False, state=FileState.BUNDLED, bytes=5, path=tmp_path / "codes.onnx",
                   revision=None),
    )  # fmt: skip
    assert models["yolov10n"].files == (
        ListedFile(half=False, state=FileState.TO_FETCH, bytes=None, path=None, revision=COMMIT),
        ListedFile(half=True, state=FileState.TO_FETCH, bytes=None, path=None, revision=COMMIT),
    )
    assert models["yolov10x"].files[0].revision == "main"
    assert models["yolov10x"].parameters == 29_500_000
    assert hub.requests == []


def test_a_fetched_branch_lists_its_commit(hub):
    hub.add("yolov10s", b"small")
    path = zoo.pull("yolov10s")
    fetched, half = by_name()["yolov10s"].files
    assert fetched == ListedFile(
        half=False, state=FileState.FETCHED, bytes=5, path=path, revision=COMMIT
    )
    assert half.state is FileState.TO_FETCH


def test_a_missing_bundled_model(tmp_path):
    (tmp_path / "codes.onnx").unlink()
    (file,) = by_name()["codes"].files
    assert (file.state, file.bytes, file.path) == (FileState.MISSING, None, None)


def test_models_of_a_licence():
    free = [model.name for model in listing("apache").models]
    assert {"codes", "dfine-n", "rfdetr-nano", "rtdetrv2-r18"} <= set(free)
    assert not any(name.startswith("yolo") for name in free)
    assert {model.licence for model in listing("AGPL").models} == {"AGPL-3.0"}
    with pytest.raises(UsageError, match="no model has it"):
        listing("mit")


def test_models_without_a_known_commit_are_called_not_pinned(hub):
    hub.add("yolov10s", b"small")
    zoo.pull("yolov10s")
    [table] = render(listing())
    shown = dict(zip(table.columns[0].cells, table.columns[5].cells, strict=True))
    assert shown["yolov10s"] == "not pinned"
    assert shown["rfdetr-medium"] == "not pinned"
    assert shown["codes"] == ""
    assert not [name for name, model in zoo.MODELS.items() if model.pinned and "not" in shown[name]]
    sizes = dict(zip(table.columns[0].cells, table.columns[2].cells, strict=True))
    assert sizes["dfine-n"] == ""
