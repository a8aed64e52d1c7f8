"""Where the nodes of a session run: ONNX Runtime leaves to the CPU what a GPU cannot do."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from detcli.errors import DeviceError

RECORD = "session.record_ep_graph_assignment_info"
"""Session configuration that makes ONNX Runtime keep what `check_placement` reads."""

EXAMPLES = 3

log = logging.getLogger(__name__)


def check_placement(session: Any, providers: Sequence[str], title: str) -> None:  # noqa: ANN401 - onnxruntime has no types
    """Make sure that a session runs where it was asked to, and log what runs elsewhere.

    Args:
        session: A session that was made with RECORD set to "1".
        providers: ONNX Runtime's names of the execution providers that were asked for, the
            wanted one first.
        title: What to call the model.

    Raises:
        DeviceError: A provider did not load, or the wanted one took no node.
    """
    wanted, loaded = providers[0], session.get_providers()
    if absent := [provider for provider in providers if provider not in loaded]:
        raise DeviceError(
            f"ONNX Runtime chose {loaded[0]} instead of {absent[0]}",
            "use --device cpu to run there on purpose",
        )
    if not hasattr(session, "get_provider_graph_assignment_info"):
        log.info("%s: ONNX Runtime tells where nodes run from version 1.24 on", title)
        return
    nodes: dict[str, list[Any]] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes.setdefault(part.ep_name, []).extend(part.get_nodes())
    count = sum(map(len, nodes.values()))
    if count and not nodes.get(wanted):
        raise DeviceError(
            f"{wanted} runs none of the {count} nodes of {title}",
            "export the model again with another opset, or use --device cpu",
        )
    for provider, placed in nodes.items():
        if provider != wanted:
            log.info("%s: %d of %d nodes run on %s: %s", title, len(placed), count, provider,
                     _summary(placed))  # fmt: skip


def _summary(nodes: Sequence[Any]) -> str:
    """Operators with their number, the most frequent first, and a few names."""
    operators = Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in nodes)
    counts = ", ".join(f"{count} {operator}" for operator, count in operators.most_common())
    names = [node.name for node in nodes if node.name][:EXAMPLES]
    return f"{counts} (such as {', '.join(names)})" if names else counts
