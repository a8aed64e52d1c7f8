"""What OpenVINO translates wrongly is refused, not run."""

import convolution_model
import onnx
import pytest

from detcli import DetcliWarning
from detcli.backend import open_backend
from detcli.backend import openvino as proof
from detcli.core.errors import ModelError
from detcli.model.file import prepare


@pytest.fixture
def mistranslated(tmp_path):
    """HardSigmoid with `beta = 0`, which OpenVINO 2026.4 takes for the default 0.5."""
    path = tmp_path / "hard.onnx"
    onnx.save_model(convolution_model.build(size=64), path)
    return prepare(path)


def refuses(model):
    try:
        open_backend("openvino", model).close()
    except ModelError:
        return True
    return False


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


@pytest.mark.parametrize("tail", ["body", "transposed"])
@pytest.mark.parametrize("batch", [1, 2, None])
@pytest.mark.parametrize("size", [64, None])
def test_right_networks_pass(tail, batch, size, make_model):
    assert not refuses(prepare(make_model(tail=tail, batch=batch, size=size)))


def test_what_onnx_runtime_cannot_load_is_not_compared(make_model, monkeypatch):
    def fail(*_):
        raise ModelError("the opset is too new")

    monkeypatch.setattr("detcli.backend.session.TensorSession", fail)
    assert not refuses(prepare(make_model()))


def test_a_start_from_the_cache_is_not_compared_again(make_model, monkeypatch, cache):
    model = prepare(make_model())
    asked = []
    monkeypatch.setattr(proof, "require_same_head", lambda *_: asked.append(1))
    for _ in range(2):
        assert not refuses(model)
    assert asked == [1]
    assert len(list(cache.rglob("*.openvino"))) == 1
