"""Writes operators of ONNX Runtime's own in those of ONNX.

A graph that was saved behind ONNX Runtime's optimisations at level "extended" has nodes that only
ONNX Runtime knows: it joins a convolution with its activation, for example. Nobody else infers
shapes behind them, and other runtimes refuse them. Here each is written as the nodes that it was
made of, which ONNX Runtime joins again when it loads them.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from detcli.model.editing import (
    add_constant,
    copied,
    opset,
    replace_nodes,
    tensor_names,
    unused_name,
)
from detcli.model.graph import GraphIndex

DOMAIN = "com.microsoft"
NORMALISES_SINCE = 17  # the operator set with LayerNormalization; ONNX Runtime takes it in any
GELU_SINCE = 20


_Rule = Callable[["_Writer", NodeProto], bool]


def unfused(model: ModelProto) -> ModelProto:
    """The model without the operators that only ONNX Runtime knows, as far as they are known here.

    Returns:
        The model itself, if there are none.
    """
    defined = {(function.domain, function.name) for function in model.functions}
    early = opset(model) < NORMALISES_SINCE
    rules = [
        None if (node.domain, node.op_type) in defined else _rule(node, early=early)
        for node in model.graph.node
    ]
    if not any(rules):
        return model
    written = copied(model)
    writer = _Writer(written)
    for node, rule in zip(model.graph.node, rules, strict=True):
        before = len(writer.nodes)
        if rule is None or not rule(writer, node):
            writer.nodes[before:] = [node]
    replace_nodes(written.graph, writer.nodes)
    return written


def runtime_operators(model: ModelProto) -> list[str]:
    """The operators of a graph that only ONNX Runtime knows."""
    defined = {(function.domain, function.name) for function in model.functions}
    own = (node for node in model.graph.node if node.domain.startswith(DOMAIN))
    return sorted({node.op_type for node in own if (node.domain, node.op_type) not in defined})


def _rule(node: NodeProto, *, early: bool) -> _Rule | None:
    """What writes a node; None if it may stay."""
    if node.domain == DOMAIN:
        return RULES.get(node.op_type)
    standard = node.domain in {"", "ai.onnx"} and node.op_type == "LayerNormalization"
    return _normalisation if standard and early else None


class _Writer:
    """Collects the nodes of a graph."""

    def __init__(self, model: ModelProto) -> None:
        self.graph, self.opset = model.graph, opset(model)
        self.nodes = list[NodeProto]()
        self._index = GraphIndex(model.graph)
        self._names = tensor_names(model.graph)

    def __call__(
        self,
        operator: str,
        inputs: list[str],
        output: str = "",
        **attributes: Any,  # noqa: ANN401 - as onnx has it
    ) -> str:
        """Add a node; returns its output."""
        name = output or unused_name(self._names, f"{operator.lower()}_unfused")
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def number(self, value: float, like: str) -> str:
        """A constant of the type of a tensor; float32 where that is not known."""
        known = self._index.types.get(like) or TensorProto.FLOAT
        dtype = helper.tensor_dtype_to_np_dtype(known)
        name = unused_name(self._names, "number_unfused")
        return add_constant(self.graph, name, np.array(value, dtype))

    def transposed(self, tensor: str, *, last: bool, batch: bool) -> str:
        """A tensor with its last two axes exchanged, or its first moved in front of the last."""
        if not (last or batch):
            return tensor
        equation = "...ij->...ji" if last else "i...j->...ij"
        rank = len(self._index.shapes.get(tensor, []))
        if rank < 2:
            return self("Einsum", [tensor], equation=equation)
        axes = list(range(rank))
        order = [*axes[:-2], rank - 1, rank - 2] if last else [*axes[1:-1], 0, rank - 1]
        return self("Transpose", [tensor], perm=order)


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def _activated(
    write: _Writer, tensor: str, output: str, name: bytes, parameters: list[float]
) -> bool:
    """Write an activation by its name; False if it is unknown."""
    match name.decode(), parameters:
        case ("Relu" | "Sigmoid" | "Tanh") as operator, _:
            write(operator, [tensor], output)
        case "", _:
            write("Identity", [tensor], output)
        case "LeakyRelu", [alpha, *_]:
            write("LeakyRelu", [tensor], output, alpha=alpha)
        case "HardSigmoid", [alpha, beta, *_]:
            write("HardSigmoid", [tensor], output, alpha=alpha, beta=beta)
        case "Clip", [low, high, *_]:
            ends = [write.number(low, output), write.number(high, output)]
            write("Clip", [tensor, *ends], output)
        case _:
            return False
    return True


def _convolution(write: _Writer, node: NodeProto) -> bool:
    """A convolution, a sum with a fourth input, an activation."""
    given = _attributes(node)
    name, parameters = given.pop("activation", b""), given.pop("activation_params", [])
    made = write("Conv", list(node.input[:3]), **given)
    if len(node.input) > 3 and node.input[3]:
        made = write("Add", [made, node.input[3]])
    return _activated(write, made, node.output[0], name, list(parameters))


def _product_of_matrices(write: _Writer, node: NodeProto) -> bool:
    """`Gemm` with an activation."""
    given = _attributes(node)
    name = given.pop("activation", b"")
    parameters = [given.pop(f"activation_{n}", 0.0) for n in ("alpha", "beta", "gamma")]
    made = write("Gemm", list(node.input), **given)
    return _activated(write, made, node.output[0], name, parameters)


def _product(write: _Writer, node: NodeProto) -> bool:
    """A matrix product of transposed factors, times a constant."""
    given, factors = _attributes(node), []
    for tensor, side in zip(node.input, "AB", strict=True):
        last, batch = bool(given.get(f"trans{side}")), bool(given.get(f"transBatch{side}"))
        if last and batch:
            return False
        factors.append(write.transposed(tensor, last=last, batch=batch))
    alpha = given.get("alpha", 1.0)
    if alpha == 1:
        write("MatMul", factors, node.output[0])
    else:
        made = write("MatMul", factors)
        write("Mul", [made, write.number(alpha, node.output[0])], node.output[0])
    return True


def _gelu(write: _Writer, node: NodeProto) -> bool:
    """The Gaussian error linear unit, of a sum if there is a bias."""
    fast = node.op_type == "FastGelu"
    x, output = str(node.input[0]), str(node.output[0])
    if len(node.input) > 1 and node.input[1]:
        x = write("Add", [x, node.input[1]])
    if write.opset >= GELU_SINCE:
        write("Gelu", [x], output, approximate="tanh" if fast else "none")
        return True

    def number(value: float) -> str:
        return write.number(value, output)

    if fast:
        cubed = write("Mul", [write("Mul", [x, x]), x])
        grown = write("Add", [x, write("Mul", [cubed, number(0.044715)])])
        share = write("Tanh", [write("Mul", [grown, number(math.sqrt(2 / math.pi))])])
    else:
        share = write("Erf", [write("Div", [x, number(math.sqrt(2))])])
    doubled = write("Mul", [x, write("Add", [share, number(1)])])
    write("Mul", [doubled, number(0.5)], output)
    return True


def _quick_gelu(write: _Writer, node: NodeProto) -> bool:
    """The product of x and sigmoid(alpha x): SiLU, where alpha is 1."""
    x, output = str(node.input[0]), str(node.output[0])
    alpha = _attributes(node).get("alpha", 1.702)
    scaled = x if alpha == 1 else write("Mul", [x, write.number(alpha, output)])
    write("Mul", [x, write("Sigmoid", [scaled])], output)
    return True


def _normalised(
    write: _Writer, tensor: str, learnt: list[str], output: str, epsilon: float
) -> None:
    """A normalisation of the last axis; `learnt` is its scale, and its bias if there is one."""
    if write.opset >= NORMALISES_SINCE:
        write("LayerNormalization", [tensor, *learnt], output, axis=-1, epsilon=epsilon)
        return
    apart = write("Sub", [tensor, write("ReduceMean", [tensor], axes=[-1])])
    variance = write("ReduceMean", [write("Mul", [apart, apart])], axes=[-1])
    deviation = write("Sqrt", [write("Add", [variance, write.number(epsilon, output)])])
    shares = write("Div", [apart, deviation])
    if len(learnt) == 1:
        write("Mul", [shares, *learnt], output)
    else:
        write("Add", [write("Mul", [shares, learnt[0]]), learnt[1]], output)


def _normalisation(write: _Writer, node: NodeProto) -> bool:
    """`LayerNormalization` before ONNX had it."""
    given, used = _attributes(node), [name for name in node.output if name]
    if given.get("axis", -1) != -1 or len(used) > 1:
        return False
    learnt = [name for name in node.input[1:] if name]
    _normalised(write, node.input[0], learnt, node.output[0], given.get("epsilon", 1e-5))
    return True


def _normalised_sum(write: _Writer, node: NodeProto) -> bool:
    """The normalisation of a sum, which the fourth output is."""
    inputs, outputs = [[*names, *[""] * 5] for names in (node.input, node.output)]
    if outputs[1] or outputs[2]:
        return False
    terms = [name for name in (inputs[0], inputs[1], inputs[4]) if name]
    made = terms[0]
    for number, term in enumerate(terms[1:], 2):
        made = write("Add", [made, term], outputs[3] if number == len(terms) else "")
    learnt = [name for name in inputs[2:4] if name]
    _normalised(write, made, learnt, outputs[0], _attributes(node).get("epsilon", 1e-12))
    return True


RULES: dict[str, _Rule] = {
    "BiasGelu": _gelu,
    "FastGelu": _gelu,
    "FusedConv": _convolution,
    "FusedGemm": _product_of_matrices,
    "FusedMatMul": _product,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _normalised_sum,
    "TransposeMatMul": _product,
}
"""What writes each operator; it returns False where a node is of a kind that it does not know."""
