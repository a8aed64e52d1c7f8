import colour_model
import numpy as np
import onnx
import onnxruntime
import pytest

from detcli.backend.session import simplified


def test_constants_are_folded_and_the_head_stays(random):
    model = colour_model.build("body")
    small = onnx.load_model_from_string(simplified(model.SerializeToString()))
    assert len(small.graph.node) < len(model.graph.node)
    picture = random.random((1, 3, 64, 64)).astype(np.float32)
    heads = [
        onnxruntime.InferenceSession(
            graph.SerializeToString(), providers=["CPUExecutionProvider"]
        ).run(None, {"images": picture})[0]
        for graph in (model, small)
    ]
    np.testing.assert_allclose(*heads, rtol=1e-6)


@pytest.mark.parametrize("damage", [b"", b"no model"])
def test_a_graph_that_does_not_load(damage):
    assert simplified(damage) is None


def test_an_unknown_operator_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = colour_model.build()
    assert simplified(model.SerializeToString()) is not None
    model.graph.node[0].op_type = "NoSuchOperator"
    assert simplified(model.SerializeToString()) is None
    assert list(tmp_path.iterdir()) == []
