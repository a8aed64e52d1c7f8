"""A compiled network without OpenVINO, and a graph for it to compile."""

from types import SimpleNamespace

import numpy as np
import onnx.parser


def layers(*entries):
    """Stands for a compiled network whose layers have these kinds, precisions and kernels."""
    names = ("layerType", "runtimePrecision", "primitiveType")
    nodes = []
    for entry in entries:
        info = {}
        for name, value in zip(names, entry, strict=True):
            info[name] = SimpleNamespace(astype=lambda _, value=value: value)
        nodes.append(SimpleNamespace(get_rt_info=lambda info=info: info))
    return SimpleNamespace(
        get_runtime_model=lambda: SimpleNamespace(get_ops=lambda: nodes),
        get_property=lambda name: (
            1 if name.startswith("OPTIMAL") else SimpleNamespace(get_type_name=lambda: "f16")
        ),
    )


LAYERS = """<ir_version: 8, opset_import: ["" : 17]>
small (float[1, 16, 8, 8] given) => (float[1, 16, 6, 6] made)
{
    weights = Constant <value_floats = [%s]> ()
    shape = Constant <value_ints = [16, 16, 3, 3]> ()
    shaped = Reshape (weights, shape)
    made = Conv (given, shaped)
}"""


def convolution():
    """A graph with one convolution."""
    values = np.random.default_rng(0).random(16 * 16 * 9).round(4)
    return onnx.parser.parse_model(LAYERS % ", ".join(map(str, values))).SerializeToString()
