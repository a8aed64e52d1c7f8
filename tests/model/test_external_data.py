"""No file outside the model's folder is opened, and none that could block."""

import os
import sys

import pytest

from detcli.core.errors import ModelError
from detcli.model.external_data import open_external


@pytest.fixture
def external_model(tmp_path):
    folder = tmp_path / "models"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "weights").write_bytes(b"weights")
    (folder / "deep" / "weights").write_bytes(b"deep weights")
    return folder / "model.onnx"


@pytest.mark.parametrize("location", ["weights", "./weights", "deep//weights", "link", "alias"])
@pytest.mark.parametrize("relative", ["", "models/model.onnx", "model.onnx"])
def test_a_file_beside_or_below_the_model_is_read(
    external_model, tmp_path, monkeypatch, location, relative
):
    (external_model.parent / "link").symlink_to("deep/weights")
    if location == "alias":  # the model's folder may be a link itself
        (tmp_path / "alias").symlink_to(external_model.parent)
        external_model = tmp_path / "alias" / "model.onnx"
        location = "weights"
    if relative:
        monkeypatch.chdir(external_model.parents[1] if "/" in relative else external_model.parent)
        external_model = type(external_model)(
            relative.replace("models", external_model.parent.name)
        )
    with open_external(external_model, location) as file:
        assert file.read() == (
            b"deep weights" if "deep" in location or location == "link" else b"weights"
        )


@pytest.mark.parametrize(
    "location",
    [
        "",
        "../secret",
        "deep/../../secret",
        "deep/../weights",
        "..\\secret",
        "deep\\..\\..\\secret",
        "ABSOLUTE/secret",
        "C:\\secret",
        "C:secret",
        "\\\\host\\share\\secret",
        "//host/share/secret",
        "secret\0",
    ],
)
def test_a_path_out_of_the_folder_is_refused_without_touching_it(
    external_model, location, monkeypatch
):
    for function in ("open", "stat", "lstat", "readlink"):
        monkeypatch.setattr(os, function, lambda *_, **__: pytest.fail("it was looked at"))
    with pytest.raises(ModelError, match="is not a path below the model's folder") as error:
        open_external(external_model, location.replace("ABSOLUTE", str(external_model.parents[1])))
    assert error.value.hint
    assert error.value.exit_code == 4


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("link", "../secret"),
        ("link", "ABSOLUTE/secret"),
        ("deep/link", "../models2/weights"),
        ("deep/link", ".."),
        ("link/weights", "../models2"),
    ],
)
def test_a_link_out_of_the_folder_is_refused_unopened(
    external_model, target, location, monkeypatch
):
    outside = (
        external_model.parents[1] / "models2"
    )  # its name begins with that of the model's folder
    outside.mkdir()
    (outside / "weights").write_bytes(b"secret")
    link = external_model.parent / location.removesuffix("/weights")
    target = target.replace("ABSOLUTE", str(external_model.parents[1]))
    link.symlink_to(target if "deep" not in location or target[0] == "/" else f"../{target}")
    monkeypatch.setattr(os, "open", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(ModelError, match="a link leads out of the model's folder") as error:
        open_external(external_model, location)
    assert "cp -L" in error.value.hint


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_a_file_that_is_not_regular_is_refused_without_blocking(external_model, monkeypatch):
    os.mkfifo(external_model.parent / "pipe")
    monkeypatch.setattr(os, "open", lambda *_, **__: pytest.fail("it was opened"))
    for name, why in (("pipe", "it is not a regular file"), ("deep", "Is a directory")):
        with pytest.raises(ModelError, match=why):
            open_external(external_model, name)


def test_a_link_made_after_the_check_is_not_followed(external_model, monkeypatch):
    judged = os.path.realpath

    def swap(path):
        resolved = judged(path)
        if resolved.endswith("weights"):
            (external_model.parent / "weights").unlink()
            (external_model.parent / "weights").symlink_to("../secret")
        return resolved

    monkeypatch.setattr(os.path, "realpath", swap)
    with pytest.raises(ModelError, match="symbolic link"):
        open_external(external_model, "weights")


@pytest.mark.parametrize("name", ["missing", "missing/weights", "weights/below", "circle"])
def test_a_missing_file_is_named_with_a_hint(external_model, name):
    (external_model.parent / "circle").symlink_to("circle")
    with pytest.raises(ModelError, match=f"model.onnx cannot be read: {name}: ") as error:
        open_external(external_model, name)
    assert error.value.hint == f"put {name} beside the model"
