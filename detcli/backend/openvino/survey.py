"""What OpenVINO makes of a graph."""

from collections import Counter

from detcli.backend.libraries import LeftNode, Placement
from detcli.backend.openvino.library import open_core, reason
from detcli.core.device import Device
from detcli.core.errors import DetcliError

OPENVINO = "OpenVINO"
NOWHERE = "none"

UNCOUNTED = {"Constant", "Parameter", "Result"}
"""What every graph has, and nothing computes."""


def place(graph: bytes, title: str) -> Placement:
    """Ask OpenVINO which nodes its CPU takes; it runs a graph only if it takes them all.

    They are counted as OpenVINO reads them, by its own names of operators. `title` names the graph
    in errors.
    """
    try:
        core = open_core(Device.parse("openvino"))
    except DetcliError as error:
        return Placement(OPENVINO, usable=False, reason=str(error), hint=error.hint)
    try:
        model = core.read_model(graph)
        taken = core.query_model(model, "CPU")
    except RuntimeError as error:
        why = f"OpenVINO cannot load {title}: {reason(error)}"
        return Placement(OPENVINO, usable=False, reason=why, hint="use --device cpu")
    nodes = [
        (node.get_friendly_name(), node.get_type_name())
        for node in model.get_ops()
        if node.get_type_name() not in UNCOUNTED
    ]
    counts = Counter(kind for name, kind in nodes if name in taken)
    left = tuple(LeftNode(name, kind, NOWHERE) for name, kind in nodes if name not in taken)
    if left:
        why = f"OpenVINO cannot load {title}: it has no {left[0].operator}"
        return Placement(OPENVINO, usable=False, reason=why, hint="use --device cpu")
    return Placement(OPENVINO, usable=True, taken=dict(counts.most_common()), left=())
