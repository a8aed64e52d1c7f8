"""Resolves how pictures become a graph's input, from what the file and its neighbours say.

The parts of a preprocessing come from the first of these that says something:

1. the model's metadata, which says what the file itself is fed, or that Ultralytics exported it;
2. preprocessor_config.json beside it;
3. nodes at the input: a graph that scales, normalises or swaps channels itself;
4. the family's rule.

Nodes at the input are read in any case, since what is beside the file may describe the network
with them or without them: a graph that divides by 255 is fed levels, whoever says that its
network wants shares of 1.
"""

from dataclasses import dataclass, replace

from detcli.errors import ModelError, UsageError
from detcli.model.contract import Contract, Interpolation, Preprocessing, Resize
from detcli.model.graph import GraphIndex
from detcli.model.input_nodes import LEVELS, InputNodes, read_input_nodes
from detcli.model.preprocessing import METADATA_KEY, PARTS, change, named_parts, require_levels
from detcli.model.sidecar import CONFIG, PREPROCESSOR, Sidecar

NODES = "nodes at the input"
FAMILY = "the family's rule"
EXPORTER = "Ultralytics"
EXPORTED = f"metadata of {EXPORTER}' exporter, and the family's rule"
METADATA = f"metadata {METADATA_KEY}"


@dataclass(frozen=True, slots=True)
class ResolvedPreprocessing:
    """How pictures become a graph's input.

    Attributes:
        preprocessing: What is fed; parts that nothing settles are as in a YOLO.
        by: Parts that are settled, and what settled each: resize, interpolation, values, channels.
        unsettled: Parts that nothing settles.
        size: Height and width of the input that a neighbour of the file gives.
    """

    preprocessing: Preprocessing
    by: tuple[tuple[str, str], ...]
    unsettled: tuple[str, ...]
    size: tuple[int, int] | None = None


def resolve_preprocessing(
    index: GraphIndex,
    image: str,
    metadata: dict[str, str],
    sidecar: Sidecar | None,
    family: Preprocessing | None,
) -> ResolvedPreprocessing:
    """Resolve the preprocessing of a graph.

    Args:
        index: The graph, as the file has it.
        image: Name of its input for pictures, `[B, 3, H, W]`, `[B, H, W, 3]` or without B.
        metadata: The file's.
        sidecar: What lies beside the file, if anything.
        family: What networks of its family are fed; None where the family does not say.

    Raises:
        ModelError: The metadata is malformed.
    """
    nodes = read_input_nodes(index, image)
    found, by, size = family or Preprocessing(), dict[str, str](), None
    if family is not None:
        by = dict.fromkeys(PARTS, FAMILY)
    if nodes.resized and nodes.any_size:
        found = replace(found, resize=Resize.NONE, longest=None, enlarge=None, edges=None)
        by["resize"] = by["interpolation"] = NODES
    if family is not None and metadata.get("author") == EXPORTER:
        # The family's rule is that of Ultralytics' predictor, which always resizes by OpenCV.
        found, by = (
            replace(found, interpolation=Interpolation.LINEAR),
            dict.fromkeys(PARTS, EXPORTED),
        )
    elif sidecar is not None and sidecar.path is not None:
        found, own, size = _with_sidecar(found, sidecar, fixed=not nodes.any_size)
        by |= dict.fromkeys(own, PREPROCESSOR)
    found, own = _through_nodes(found, nodes, by)
    by |= dict.fromkeys(own, NODES)
    if text := metadata.get(METADATA_KEY):
        try:
            found = change(found, text)
            if nodes.integer:
                require_levels(found, text)
            by |= dict.fromkeys(named_parts(text), METADATA)
        except UsageError as error:
            problem = str(error).replace("--preprocess", METADATA_KEY)
            raise ModelError(
                f"the metadata of the model is malformed: {problem}",
                f"export it again with another {METADATA_KEY}, or without",
            ) from error
    settled = tuple((part, by[part]) for part in PARTS if part in by)
    return ResolvedPreprocessing(
        found, settled, tuple(part for part in PARTS if part not in by), size
    )


def _with_sidecar(
    found: Preprocessing, sidecar: Sidecar, *, fixed: bool
) -> tuple[Preprocessing, list[str], tuple[int, int] | None]:
    """What preprocessor_config.json adds: the parts that it settles and the input's size."""
    own, size = list[str](), None
    if (values := sidecar.values) is not None:
        found = replace(found, scale=values.scale, mean=values.mean, std=values.std, bgr=values.bgr)
        own += ["values", "channels"]
    if sidecar.interpolation is not None:
        found = replace(found, interpolation=sidecar.interpolation)
        own.append("interpolation")
    way = sidecar.resizing
    # An input of a fixed size cannot follow the picture.
    if way is not None and not (fixed and way.resize in {Resize.SHORTEST_EDGE, Resize.NONE}):
        pad = found.pad
        if way.resize is Resize.CORNER and found.scale:
            # Transformers pad with 0 after the normalisation: the nearest level.
            pad = min(max(round(sum(found.mean) / 3 / found.scale), 0), 255)
        found = replace(
            found,
            resize=way.resize,
            edges=way.edges,
            multiple=way.multiple,
            longest=None,
            enlarge=None,
            pad=pad,
        )
        own.append("resize")
        size = way.size
    return found, own, size


def _through_nodes(
    wanted: Preprocessing, nodes: InputNodes, by: dict[str, str]
) -> tuple[Preprocessing, list[str]]:
    """What to feed so that the network behind the input nodes gets what it was trained on."""
    own = []
    bgr = wanted.bgr
    if nodes.swaps:
        bgr = not bgr
        own += ["channels"] if "channels" in by else []
    if (shown := nodes.order) is not None:
        bgr, own = shown, ["channels"]
    fed = replace(wanted, bgr=bgr)
    if bgr != wanted.bgr:
        fed = replace(fed, mean=wanted.mean[::-1], std=wanted.std[::-1])
    plain = replace(fed, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    if nodes.integer:
        return replace(plain, scale=1.0), [*own, "values"]
    if not nodes.computes:
        return fed, own
    normalises = any(fed.mean) or len(set(fed.std)) > 1
    if nodes.only_scales and normalises and "values" in by:
        gain = nodes.gains[0]
        red, green, blue = fed.std
        return replace(fed, std=(red * gain, green * gain, blue * gain)), [*own, "values"]
    domain = nodes.domain
    if domain is None:
        by.pop("values", None)
        return fed, own
    return replace(plain, scale=1.0 if domain == LEVELS else 1 / LEVELS), [*own, "values"]


def with_preprocessing(
    contract: Contract,
    index: GraphIndex,
    metadata: dict[str, str],
    sidecar: Sidecar | None,
    family: Preprocessing | None,
) -> Contract:
    """The contract of a graph with its preprocessing, and class names from beside the file.

    For the arguments see `resolve_preprocessing`.
    """
    found = resolve_preprocessing(index, contract.input_name, metadata, sidecar, family)
    contract = replace(
        contract,
        preprocessing=found.preprocessing,
        settled=(*contract.settled, *found.by),
        unsettled=found.unsettled,
        default_size=found.size or contract.default_size,
    )
    names = None if sidecar is None else sidecar.names
    if names is None or "names" in metadata:
        return contract
    if contract.counts_classes and len(names) != contract.class_count:
        return contract
    return contract.with_names(names, CONFIG)
