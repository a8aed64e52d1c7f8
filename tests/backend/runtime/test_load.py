"""The import of ONNX Runtime, in a process of its own."""

import os


def test_an_onnxruntime_that_does_not_load_is_explained(detcli, make_model, make_picture, tmp_path):
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake/onnxruntime.py").write_text("raise ImportError('half a wheel')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "fake")}
    finished = detcli("predict", make_picture("a.png"), "-m", make_model(), env=environment)
    assert finished.returncode == 1
    assert "ONNX Runtime does not load: half a wheel" in finished.stderr
    assert "pip uninstall" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_nothing_is_left_in_the_users_home(detcli, make_model, make_picture, tmp_path):
    """ONNX Runtime's telemetry would leave a device id there."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home)}
    environment.pop("ORT_DISABLE_TELEMETRY", None)  # set by this process's own import
    finished = detcli("predict", make_picture("a.png"), "-m", make_model(), env=environment)
    assert finished.returncode == 0
    assert list(home.rglob("*")) == []
