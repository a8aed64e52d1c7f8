"""The limit of memory that a process sets itself."""

import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from detcli.__main__ import MIN_MEMORY

PREDICT = """
import resource, sys
from detcli.__main__ import limit_memory, main
limit_memory(0)
assert resource.getrlimit(resource.RLIMIT_DATA)[0] == {limit}
sys.argv = ["detcli", "inspect", sys.argv[1]]
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the memory that is left")
def test_a_model_that_asks_for_more_memory_than_there_is_is_refused(tmp_path):
    shape = numpy_helper.from_array(np.array([60_000, 60_000]), "shape")  # 13.4 GiB
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["large"]),
        helper.make_node("ReduceMax", ["large"], ["largest"], keepdims=0),
        helper.make_node("Add", ["x", "largest"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "graph", [x], [y], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    command = [sys.executable, "-c", PREDICT.format(limit=MIN_MEMORY), str(path)]
    process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert process.returncode == 4
    assert "bug" not in process.stderr
