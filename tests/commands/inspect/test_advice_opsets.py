"""The newest versions that the runtime loads are found by trying."""

import colour_model
import onnxruntime
import pytest

from detcli.commands.inspect import advice as opsets
from detcli.commands.inspect.advice import newest_ir, newest_opset

ASKED = [(newest_opset, "opset"), (newest_ir, "ir")]


def loads(opset, ir):
    model = colour_model.build()
    model.opset_import[0].version = opset
    model.ir_version = ir
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # noqa: BLE001 - ONNX Runtime has many of its own
        return False
    return True


def test_the_newest_opset_loads_and_the_next_does_not():
    newest = newest_opset(1 << 40)
    assert newest >= 17
    assert loads(newest, 8)
    assert not loads(newest + 1, 8)


def test_the_newest_format_loads_and_the_next_does_not():
    newest = newest_ir(1 << 40)
    assert newest >= 8
    assert loads(17, newest)
    assert not loads(17, newest + 1)


@pytest.mark.parametrize(("newest", "kind"), ASKED)
@pytest.mark.parametrize("own", [-5, 0, 1, 7, 8])
def test_a_version_that_loads_or_is_too_old_is_returned(newest, kind, own):
    assert newest(own) == own, kind


def test_the_search_is_short(monkeypatch):
    asked = []

    def takes(_, opset):
        asked.append(opset)
        return opset <= 26

    monkeypatch.setattr(opsets, "_takes", takes)
    assert newest_opset(27) == 26
    assert newest_opset(10**12) == 26
    assert len(asked) < 60
