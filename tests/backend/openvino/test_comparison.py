"""A network is compared with ONNX Runtime's once, and a wrong translation is refused."""

from unittest import mock

import convolution_model
import onnx
import optional
import pytest

from detcli import DetcliWarning
from detcli.backend import open_backend, openvino
from detcli.core.errors import ModelError
from detcli.model.prepared import prepare

pytestmark = optional.needs("openvino")


@pytest.fixture
def mistranslated(tmp_path):
    """HardSigmoid with `beta = 0`, which OpenVINO 2026.4 takes for the default 0.5."""
    path = tmp_path / "hard.onnx"
    onnx.save_model(convolution_model.build(size=64), path)
    return prepare(path)


def test_a_wrong_translation_is_refused_at_every_start(mistranslated, cache):
    for _ in range(2):
        with pytest.raises(ModelError, match="something else from hard than ONNX Run") as caught:
            open_backend("openvino", mistranslated)
    assert "--device cpu" in caught.value.hint
    assert list(cache.rglob("*.openvino")) == []


def test_auto_does_not_take_it(mistranslated, monkeypatch):
    monkeypatch.setattr("detcli.backend.nvidia.count_gpus", lambda: 0)
    with pytest.warns(DetcliWarning, match="the CPU is used: OpenVINO computes something else"):
        assert open_backend("auto", mistranslated).device == "cpu"


def test_what_onnx_runtime_cannot_load_is_not_compared(make_model, monkeypatch):
    refuse = mock.Mock(side_effect=ModelError("the opset is too new"))
    monkeypatch.setattr("detcli.backend.session.TensorSession", refuse)
    open_backend("openvino", prepare(make_model())).close()


def test_a_start_from_the_cache_is_not_compared_again(make_model, monkeypatch, cache):
    model = prepare(make_model())
    comparisons = []
    monkeypatch.setattr(openvino, "require_same_head", lambda *_: comparisons.append(1))
    for _ in range(2):
        open_backend("openvino", model).close()
    assert comparisons == [1]
    assert len(list(cache.rglob("*.openvino"))) == 1
