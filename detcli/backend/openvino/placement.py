"""Whether OpenVINO can run a graph, and how many of its nodes."""

from collections import Counter
from typing import TYPE_CHECKING

import onnx

from detcli.backend.openvino.library import Core, open_core, reason
from detcli.config.device import Device
from detcli.core.errors import DetcliError

if TYPE_CHECKING:
    from detcli.backend.libraries import Placement

PROVIDER_NAME = "OpenVINO"  # listed beside ONNX Runtime's execution providers

NOT_COMPUTED = {"Constant", "Parameter", "Result"}  # what every graph has, and nothing computes


def placement_of(graph: bytes, title: str) -> "Placement":
    """Find out whether OpenVINO can run a graph on the CPU, and count its nodes by operator.

    OpenVINO runs a graph only if it supports all of its nodes, so it leaves none to another
    provider. It may replace a node by several others of OpenVINO's. The nodes of the ONNX graph are
    counted, and not those, so that the numbers compare with other providers'.

    Args:
        graph: The content of an ONNX file.
        title: How messages refer to the graph.

    Returns:
        If OpenVINO can run it, the number of nodes by operator; if not, the reason and a hint.
    """
    from detcli.backend.libraries import Placement

    try:
        core = open_core(Device.parse("openvino"))
    except DetcliError as error:
        return _refusal(str(error), error.hint)
    try:
        unsupported_operator = _unsupported_operator(core, graph)
    except RuntimeError as error:
        return _refusal(f"OpenVINO cannot load {title}: {reason(error)}", "use --device cpu")
    if unsupported_operator is not None:
        problem = f"OpenVINO cannot load {title}: it has no {unsupported_operator}"
        return _refusal(problem, "use --device cpu")

    operator_counts = Counter(node.op_type for node in onnx.load_from_string(graph).graph.node)
    del operator_counts["Constant"]  # a Constant computes nothing
    node_counts = dict(operator_counts.most_common())
    return Placement(PROVIDER_NAME, usable=True, taken=node_counts, left=())


def _unsupported_operator(core: Core, graph: bytes) -> str | None:
    """Return the first operator of a graph that OpenVINO does not support on the CPU, if any.

    Raises:
        RuntimeError: OpenVINO cannot read the graph at all.
    """
    model = core.read_model(graph)
    supported_names = core.query_model(model, "CPU")
    for node in model.get_ops():
        operator: str = node.get_type_name()
        if operator not in NOT_COMPUTED and node.get_friendly_name() not in supported_names:
            return operator
    return None


def _refusal(problem: str, hint: str) -> "Placement":
    """Return the placement of a graph that OpenVINO cannot run, with the reason and a hint."""
    from detcli.backend.libraries import Placement

    return Placement(PROVIDER_NAME, usable=False, reason=problem, hint=hint)
