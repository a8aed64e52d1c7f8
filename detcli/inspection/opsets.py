"""Which versions of the format and of the operators the runtime takes: found by asking it.

No version number of ONNX Runtime says it, and its list of operators has some that it does not take
yet. A graph of one node costs a millisecond to load.
"""

from collections.abc import Callable

from onnx import TensorProto, helper

from detcli.backend.runtime.survey import refusal

OLDEST_OPSET = 7
"""ONNX Runtime promises nothing for operator sets before it."""

OLDEST_IR = 3
SURE_OPSET, SURE_IR = 17, 8  # taken by every version that detcli runs on


def newest_opset(own: int) -> int:
    """The newest version of ONNX' operators that the runtime takes, up to a model's own."""
    return _newest(own, OLDEST_OPSET, lambda version: _takes(SURE_IR, version))


def newest_ir(own: int) -> int:
    """The newest version of the file format that the runtime takes, up to a model's own."""
    return _newest(own, OLDEST_IR, lambda version: _takes(version, SURE_OPSET))


def _newest(own: int, oldest: int, takes: Callable[[int], bool]) -> int:
    """Bisect between a version that is taken and one that is refused."""
    if own <= oldest or takes(own):
        return own
    taken, refused = oldest, own
    while refused - taken > 1:
        middle = (taken + refused) // 2
        taken, refused = (middle, refused) if takes(middle) else (taken, middle)
    return taken


def _takes(ir: int, opset: int) -> bool:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "probe", [x], [y])
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, ir_version=ir, opset_imports=opsets)
    return refusal(model.SerializeToString(), "probe") is None
