import hashlib

import numpy as np
import onnx
import pytest
from colour_model import build, picture

from detcli.backend.device import DeviceOptions
from detcli.commands.shared.comparison import Precision
from detcli.commands.shared.sides import precision_of
from detcli.commands.verify.graphs import Probe, common_size
from detcli.errors import ModelError, UsageError
from detcli.geometry import Picture
from detcli.model.loading import ModelFile

RED = Picture.whole(picture(("red", 1, 1)))


def probe(path, head=None, size=(64, 64)):
    return Probe(ModelFile.read(path), head, "cpu", size, DeviceOptions())


def test_reading_a_detector(make_model):
    path = make_model()
    file = ModelFile.read(path)
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert file.contract.head == "head"
    assert (file.refusal, precision_of(file.model)) == (None, Precision.FLOAT32)


def test_reading_what_is_no_detector(tmp_path):
    model = build()
    model.graph.output[0].name = "cells"
    (tmp_path / "cells.onnx").write_bytes(model.SerializeToString())
    file = ModelFile.read(tmp_path / "cells.onnx")
    assert file.contract is None
    assert "not a detector" in str(file.refusal)


def test_what_is_no_model_at_all(tmp_path):
    with pytest.raises(ModelError, match="cannot read"):
        ModelFile.read(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ModelError):
        ModelFile.read(tmp_path / "text.onnx").detector()


def test_precision(make_model):
    assert precision_of(onnx.load(make_model(dtype=np.float16))) is Precision.FLOAT16
    model = onnx.load(make_model())
    model.graph.node[0].op_type = "QLinearConv"
    assert precision_of(model) is Precision.INT8


def test_the_size_that_both_take(make_model):
    fixed, free = ModelFile.read(make_model()), ModelFile.read(make_model("free.onnx", size=None))
    other = ModelFile.read(make_model("other.onnx", size=128))
    assert common_size([fixed, free], None) == (64, 64)
    assert common_size([free, free], 96) == (96, 96)
    assert common_size([free, free], None) == (640, 640)
    with pytest.raises(ModelError, match="64x64 and 128x128"):
        common_size([fixed, other], None)
    with pytest.raises(UsageError, match="64x64 pictures only"):
        common_size([fixed, free], 96)


def test_a_network_that_takes_no_picture(make_model, tmp_path):
    model = onnx.load(make_model())
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    (tmp_path / "four.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="does not take a picture"):
        common_size([ModelFile.read(tmp_path / "four.onnx")], None)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_any_tensor_of_a_network(make_model, dtype):
    network = probe(make_model(dtype=dtype))
    found = network.fetch(RED, ["cells", "head", "cells"])
    assert found["head"].dtype == dtype
    np.testing.assert_array_equal(found["cells"][0, :, 1, 1], [1, 0, 0])
    assert list(network.fetch(RED, ["scores"])) == ["scores"]
    assert network.half == (dtype is np.float16)


def test_a_graph_is_cut_at_its_head_or_whole(make_model):
    path = make_model(tail="ultralytics")
    assert probe(path).outputs == ["detections"]
    cut = probe(path, "head")
    assert cut.outputs == ["head"]
    assert "first_index" not in cut.index.producers


def test_a_fixed_batch_is_filled(make_model):
    found = probe(make_model(batch=3)).fetch(RED, ["head"])
    assert found["head"].shape == (3, 7, 64)
