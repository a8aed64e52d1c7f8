"""Recognises what an ONNX graph promises by its structure; names of nodes do not matter.

`detcli.model.inputs` and `detcli.model.heads` read the two ends of a graph, `detcli.model.families`
adds what a file does not say, and `detcli.model.adapt` brings the graph to the form that runs.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import onnx
from onnx import NodeProto

from detcli.config.config import Settings
from detcli.config.values import BoxFormat, Tiling, parse_conf
from detcli.core import frozen
from detcli.core.errors import ModelError, UsageError
from detcli.model.adapt import HEAD, Adaptation, adapt, with_one_input
from detcli.model.contract import (
    BOXES_OF_MORE,
    UNKNOWN_CLASSES,
    Contract,
    Layout,
    MultiLabel,
    Preprocessing,
    ScoreForm,
    Size,
    class_conf_by_id,
    class_names,
    parse_names,
)
from detcli.model.editing import cut
from detcli.model.families import FAMILIES, FIRST_WEIGHT, Family, family_of
from detcli.model.graph import GraphIndex, image_size, known_size, shape, type_name
from detcli.model.heads import (
    BATCHED,
    BOXES_ONLY,
    DETECTORS,
    SELECTION,
    BoxDecode,
    Head,
    Unrecognised,
)
from detcli.model.heads.decode import makers, moved_inputs, shares_of
from detcli.model.heads.joined import (
    best_class,
    end_to_end,
    has_patches,
    pair,
    plugin,
    queries,
    queries_of,
    single_tensor,
)
from detcli.model.heads.order import mixes_channels
from detcli.model.heads.raw_outputs import grid_heads, shapes_at
from detcli.model.heads.selected_in_graph import (
    box_columns,
    corner_order,
    detections_head,
    selected_detections,
    six_columns,
)
from detcli.model.inputs import (
    MAX_INPUT,
    ImageInput,
    find_inputs,
    first_weight,
    with_preprocessing,
)
from detcli.model.preprocessing import BY_FAMILY, CONFIG, SIZE, Sidecar

EXPECTED = (
    "expected pictures [B, 3, H, W] or [B, H, W, 3] in, and out boxes and scores: [B, 4 + C, N], "
    "[B, N, 4 + C], [B, N, 4] with [B, N, C], or detections that the graph selects"
)
SAVED_BY_RUNTIME = "export it again, or save it behind ONNX Runtime's basic optimisations only"
UNKNOWN_BOXES = "if its head is boxes in pixels and then class scores, pass --box-format"
DEFAULT_STRIDE = 32  # of every published YOLO detector with three scales
MAX_STRIDE = 1024
FAMILY_KEY = "detcli.family"
"""The metadata entry that names the family, where `convert` has changed how the graph ends."""
BOX_FORMAT_KEY = "detcli.box_format"  # the metadata entry that says what --box-format said
CONF_KEY = "detcli.conf"  # the metadata entry that recommends a confidence, as `--conf` takes it
TILE_KEY = "detcli.tile"  # and the one that recommends tiles, as `--tile` takes them
NMS_KEY = "detcli.nms"
"""The metadata entry that recommends an IoU, above 0 and at most 1, for the non-maximum suppression
of a one-to-many head."""
PAIR = 2  # boxes and scores; more outputs than that may be landmarks, or those of several scales
DEFAULT_SIZE = (640, 640)
MAX_LISTED = 8  # inputs and outputs in a message
MAX_CLASSES = 100_000  # more than any detector has; a damaged file may say billions

Confidences = tuple[float | None, tuple[tuple[int, float], ...]]
"""The confidence of all classes, if there is one, and those of single classes by class id."""
NO_CONFIDENCES: Confidences = (None, ())


TASKS = {
    "classify": "it classifies whole pictures",
    "segment": "it segments objects",
    "pose": "it finds poses",
    "obb": "it finds oriented boxes",
}
"""What Ultralytics' metadata calls other tasks."""
SAY_WHICH = f'say which: detcli convert FILE --metadata "{FAMILY_KEY}=NAME" --output NEW'
ENOUGH = {BOXES_ONLY, DETECTORS, SAY_WHICH}  # hints that say all that is to say
MIXED = (
    "a Reshape in place of a Transpose mixes the channels of its last layers with their cells, so "
    "that no box is right"
)
WITH_BOXES = {"segment", "pose"}  # tasks whose graphs give boxes too


@frozen
class Reading:
    """What a graph promises, and what has to be added to it."""

    contract: Contract
    adaptation: Adaptation

    def body(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The part of the graph that runs: one input for pictures, the head its only output."""
        if self.adaptation.is_needed:
            return adapt(model, self.adaptation)
        return cut(model, self.contract.head)

    def with_image_input(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The graph with one input for pictures, `[B, 3, H, W]`, and all else as it is."""
        return with_one_input(model, self.adaptation) if self.adaptation.is_needed else model


def read_graph(
    model: onnx.ModelProto,
    title: str,
    box_format: BoxFormat | None = None,
    sidecar: Sidecar | None = None,
    *,
    boxes_only: bool = False,
) -> Reading:
    """Read what a graph promises, and what it lacks to be run."""
    index = GraphIndex(model.graph)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    unknown = _runtime_operators(model)
    try:
        reading = _reading(model, index, metadata, box_format, boxes_only=boxes_only)
    except Unrecognised as error:
        inputs, outputs = map(_signatures, (index.image_inputs(), index.graph.output))
        reason, *hint = error.args
        if unknown:
            listed = ", ".join(unknown[:MAX_LISTED])
            is_own = "is an operator" if len(unknown) == 1 else "are operators"
            reason += f"; {listed} {is_own} of ONNX Runtime's own"
            hint.append(SAVED_BY_RUNTIME)
        raise ModelError(
            f"{title} is not a detector that detcli knows: {reason}. "
            f"Inputs: {inputs}. Outputs: {outputs}",
            # Whoever has a model of another task does not lack a layout.
            "; ".join(hint if hint and hint[0] in ENOUGH else [*hint, EXPECTED]),
        ) from error
    image = reading.adaptation.image
    contract = with_preprocessing(reading.contract, index, image, metadata, sidecar)
    names = None if sidecar is None or "names" in metadata else sidecar.names
    if names and (not contract.counts_classes or len(names) == contract.class_count):
        contract = contract.with_names(names, CONFIG)
    return replace(reading, contract=contract)


def _runtime_operators(model: onnx.ModelProto) -> list[str]:
    """The operators of a graph that only ONNX Runtime knows."""
    defined = {(function.domain, function.name) for function in model.functions}
    own = (node for node in model.graph.node if node.domain.startswith("com.microsoft"))
    return sorted({node.op_type for node in own if (node.domain, node.op_type) not in defined})


def read_selection(model: onnx.ModelProto, reading: Reading) -> Reading | None:
    """Read the detections that a graph selects itself, where detcli cuts it before that."""
    index, contract = GraphIndex(model.graph), reading.contract
    heads = reading.adaptation.head.tensors
    behind = set().union(*(index.moved_from(name) for name in heads))
    selects = any(node.output[0] in behind for node in index.nodes("TopK"))
    if contract.layout is Layout.ROWS or not selects:
        return None
    # The columns of a YOLO's rows are taken by place, so that a wrong one is found.
    head, found = None, selected_detections(index)
    if contract.layout is Layout.END_TO_END and (usual := six_columns(index)) is not None:
        head = replace(usual, decoded=None if found is None else found.decoded)
    if (head := head or found) is None:
        return None
    decoded = head.decoded or reading.adaptation.head.decoded
    fractions = contract.box_fractions and not _in_pixels(index, head, heads)
    rows = replace(
        contract,
        layout=Layout.ROWS,
        head=HEAD,
        anchors_first=True,
        box_format=contract.box_format if decoded is None else decoded.box_format,
        box_fractions=fractions,
        score_form=ScoreForm.FINAL,
        nms=None,
    )
    plan = replace(reading.adaptation, head=head, no_object=None, swapped=False)
    return Reading(rows, plan)


def _in_pixels(index: GraphIndex, rows: Head, heads: tuple[str, ...]) -> bool:
    """True if the boxes of rows are those of a head times the size of the picture."""

    def onward(node: NodeProto, name: str) -> Iterable[str]:
        scales = node.op_type in {"Add", "Div", "Mul", "Sub"}
        inputs = moved_inputs(node, name) or (node.input if scales else ())
        return (one for one in inputs if one not in heads)

    start = {box_columns(index, rows)} - {*heads}
    for node, _ in index.behind_all(start, onward):
        factors = [index.array(entry) for entry in node.input] if node.op_type == "Mul" else []
        if factors and all(factor is None or factor.max() > 1 for factor in factors):
            return True
    return False


def _reading(
    model: onnx.ModelProto,
    index: GraphIndex,
    metadata: dict[str, str],
    asked: BoxFormat | None,
    *,
    boxes_only: bool,
) -> Reading:
    image, others = find_inputs(index)
    _check_task(metadata.get("task", "detect"), boxes_only=boxes_only)
    named = parse_names(metadata.get("names", ""))
    default, stride = _sizes(metadata)
    cells = partial(_cells, model, index, image, metadata)
    try:
        head = _find_head(index, named, cells, default, boxes_only=boxes_only)
    except Unrecognised as error:
        has_hint = len(error.args) > 1
        if not has_hint and mixes_channels(index, [output.name for output in index.graph.output]):
            raise Unrecognised(MIXED) from error
        raise
    if head.takes_any_size:
        image = replace(image, size=None, batch=None)
    if mixes_channels(index, head.tensors):
        raise Unrecognised(MIXED)
    # An unknown operator may make them, final or not.
    if head.scores_are is None and _runtime_operators(model):
        raise Unrecognised("it is not clear what makes its scores")
    family = _family(head, image, metadata.get(FAMILY_KEY))
    box_format = _box_format(head, asked or _given_format(metadata.get(BOX_FORMAT_KEY)))
    # Some graphs leave the class of no object out themselves, and so do those that select.
    left_out = head.layout is Layout.END_TO_END or _leaves_out_a_class(index, head)
    no_object = None if left_out else family.no_object
    count = _class_count(head, named, dropped=no_object is not None)
    names, names_origin, warnings = class_names(metadata.get("names", ""), count, family.names)
    if head.has_more:
        warnings = (*warnings, BOXES_OF_MORE)
    swapped, fractions = _corners(index, head, family)
    several = family.needs_nms is None and _gives_several(head, metadata)
    layout = Layout.ONE_TO_MANY if several else head.layout
    usual = family.nms if several or family.needs_nms else None
    (conf, class_conf), nms, tile, ignored = recommended(metadata, usual, names)
    adaptation = Adaptation(head, image, others, no_object, swapped)
    made, parts = adaptation.made
    preprocessing = family.preprocess(image.size, default)
    assumed_values = family.variant
    if preprocessing is not None and family.earlier is not None:
        weight = first_weight(index, image.name)
        if weight is not None:
            assumed_values = ""
            if weight > FIRST_WEIGHT:
                preprocessing = family.earlier
    contract = Contract(
        layout=layout,
        head=made,
        anchors_first=adaptation.anchors_first,
        box_format=box_format,
        class_count=count,
        anchor_count=_anchor_count(index, head, image.size),
        input_name=image.name,
        input_dtype=image.floats,
        batch=_batch(index, head, image),
        input_size=image.size,
        default_size=default,
        stride=stride,
        names=names,
        names_origin=names_origin,
        counts_classes=head.class_count is not None,
        family=family.name,
        heads=parts,
        box_fractions=fractions,
        score_form=adaptation.score_form,
        multi_label=MultiLabel.NEVER if head.best_class_only else family.multi_label,
        most=_most(index, head, family),
        within_anchors=family.gives_a_set,
        clips=family.clips,
        conf=conf,
        class_conf=class_conf,
        tile=tile,
        nms=nms,
        class_agnostic=family.class_agnostic,
        preprocessing=preprocessing or Preprocessing(),
        takes_uint8=image.dtype == "uint8",
        preprocessing_sources=BY_FAMILY if preprocessing else (),
        assumed_preprocessing=_assumed(metadata, image, assumed_values),
        warnings=(*warnings, *ignored, *_against_nodes(head, asked)),
    )
    return Reading(contract, adaptation)


def _find_head(
    index: GraphIndex,
    names: list[str] | None,
    cells: Callable[[Size | None], Head | None],
    size: Size,
    *,
    boxes_only: bool = False,
) -> Head:
    """Find the head of a graph.

    Tensors are told apart by what makes them, never by name or order: with four classes, boxes and
    scores have one shape. Where a graph selects detections itself, the head is what it selects
    from, if that can be had without the selection; else what it selects is read as it is. `cells`
    looks for one by the number of its cells: at the graph's own size, or, which takes
    longer, at one that is supposed.
    """
    ways = (
        partial(end_to_end, boxes_only=boxes_only),
        best_class,
        queries,
        plugin,
        partial(detections_head, boxes_only=boxes_only),
        lambda _: cells(None) or (cells(size) if len(index.graph.output) > PAIR else None),
        pair,
        partial(single_tensor, names=names, boxes_only=boxes_only),
    )
    head = next(filter(None, (find(index) for find in ways)), None)
    if head is None or head.decoded is None or head.decodes(BoxDecode.LINEAR):
        head = cells(size) or head
    if head is None:
        raise Unrecognised(_why_not(index))
    if not head.of_queries:
        return head
    begin = queries_of(index, head.boxes[0].tensor)
    return replace(head, queries=begin, patches=has_patches(index))


def _why_not(index: GraphIndex) -> str:
    if own := {node.op_type for node in index.graph.node} & SELECTION:
        return f"it selects boxes itself ({', '.join(sorted(own))}), and it is not clear where"
    outputs = [index.shapes[output.name] for output in index.graph.output]
    if len(outputs) != 1:
        return (
            f"it has {len(outputs)} outputs, and it is not clear which are boxes and which scores"
        )
    match len(outputs[0]):
        case 2:
            return "it classifies whole pictures: its output is [B, C]"
        case 4:
            return "it segments pictures, or its boxes are not decoded: its output is [B, C, H, W]"
    return "its output is not a detection head"


def _cells(
    model: onnx.ModelProto,
    index: GraphIndex,
    image: ImageInput,
    metadata: dict[str, str],
    supposed: Size | None,
) -> Head | None:
    """The head of cells that a graph ends in: at its own size, or at one that is supposed."""
    names, named = parse_names(metadata.get("names", "")), metadata.get(FAMILY_KEY)
    rows = {
        family.grid: family.name
        for family in FAMILIES
        if family.grid is not None and named in {None, "", family.name}
        if supposed is None or family.grid.takes_any_size or image.size is None
    }
    size = image.size if supposed is None else supposed
    if size is None or not rows:
        return None
    shapes = index.shapes if supposed is None else shapes_at(model, image.name, size)
    heads = [*grid_heads(index, shapes, size, rows)]
    heads = [head for head in heads if names and head.class_count == len(names)] or heads
    if len(heads) > 1:
        fits = " or ".join(rows[head.grid.spec] for head in heads if head.grid)
        raise Unrecognised(f"it may be {fits}, which decode their boxes differently", SAY_WHICH)
    return heads[0] if heads else None


def _check_task(task: str, *, boxes_only: bool) -> None:
    if task == "detect" or (boxes_only and task in WITH_BOXES):
        return
    does = TASKS.get(task, "it is for something else")
    hint = BOXES_ONLY if task in WITH_BOXES else DETECTORS
    raise Unrecognised(f"{does}: its metadata says task '{task}'", hint)


def _sizes(metadata: dict[str, str]) -> tuple[Size, int]:
    """The size of inputs that are free, and the stride."""
    default = _named_size(metadata) or DEFAULT_SIZE
    stride = max(_integers(metadata.get("stride"), 1))
    return default, stride if 0 < stride <= MAX_STRIDE else DEFAULT_STRIDE


def _named_size(metadata: dict[str, str]) -> Size | None:
    size = image_size(*_integers(metadata.get("imgsz"), 2))
    return None if size is None or math.prod(size) > MAX_INPUT else size


def _assumed(
    metadata: dict[str, str], image: ImageInput, values: str
) -> tuple[tuple[str, str], ...]:
    """What neither the file's graph nor its metadata says, of which `values` tells the values."""
    found = [("values", values)] if values else []
    if image.size is None and _named_size(metadata) is None:
        height, width = DEFAULT_SIZE
        found.append(
            (SIZE, f"an input of {width}x{height}, as no size is named; --imgsz N sets it")
        )
    return tuple(found)


def _corners(index: GraphIndex, head: Head, family: Family) -> tuple[bool, bool]:
    """Whether corners of rows are y1, x1, y2, x2, and whether boxes are fractions of the input."""
    shown = corner_order(index, head)
    # Distances to sides give x before y in pixels, unless nodes behind them change that.
    changed = shown is None or any(shown) or not head.decodes(BoxDecode.DISTANCES)
    if (shown is None and family.shown) or (family.swapped and not changed):
        raise Unrecognised("the order and unit of the corners of its detections are not clear")
    if shown is not None:
        # Nodes show a change; of what comes before it, the family knows more.
        return family.swapped or shown[0], family.fractions or shown[1]
    fractions = None if head.decoded is None else head.decoded.fractions
    return family.swapped, family.fractions if fractions is None else fractions


def _batch(index: GraphIndex, head: Head, image: ImageInput) -> int | None:
    """How many pictures a graph takes at once: one, where their rows follow one after the other."""
    dims = index.shapes[head.boxes[0].tensor]
    listed = head.layout is Layout.ROWS or len(dims) < BATCHED
    if not listed or (len(dims) == BATCHED and dims[0] != 1):
        return image.batch
    if image.batch not in {None, 1}:
        raise Unrecognised(
            f"it takes {image.batch} pictures at once and gives all their detections in one list",
            "export it with a batch of 1",
        )
    return 1


def _family(head: Head, image: ImageInput, named: str | None) -> Family:
    if not named:
        return family_of(head, image)
    family = next((one for one in FAMILIES if one.name == named), None)
    if family is None or not (head.layout is Layout.END_TO_END or family.is_of(head)):
        raise Unrecognised(f"its metadata {FAMILY_KEY} says '{named}', which does not fit it")
    return family


def _given_format(text: str | None) -> BoxFormat | None:
    if text and text not in set(BoxFormat):
        raise Unrecognised(f"its metadata {BOX_FORMAT_KEY} says '{text}'")
    return BoxFormat(text) if text else None


def _box_format(head: Head, said: BoxFormat | None) -> BoxFormat:
    if (found := said or _shown_format(head)) is None:
        raise Unrecognised("its boxes are not decoded in a known way", UNKNOWN_BOXES)
    return found


def _shown_format(head: Head) -> BoxFormat | None:
    undecoded = head.decoded is None or head.decodes(BoxDecode.LINEAR)
    if head.layout is Layout.ROWS and undecoded:
        return BoxFormat.XYXY  # as selecting graphs end in, unless they show otherwise
    if undecoded and not head.grid:
        return None
    return head.decoded and head.decoded.box_format


def _against_nodes(head: Head, asked: BoxFormat | None) -> list[str]:
    """The warning about a box format other than the one that nodes show."""
    if asked is None or head.decoded is None or head.decodes(BoxDecode.LINEAR):
        return []
    shown = head.decoded.box_format
    return [] if asked is shown else [f"its nodes show boxes in {shown}, not {asked} as asked for"]


def _gives_several(head: Head, metadata: dict[str, str]) -> bool:
    """True if a YOLO's head gives several boxes for an object: one with centres, unless it says."""
    if head.layout is Layout.END_TO_END:
        return False
    said = {"False": True, "True": False}.get(metadata.get("end2end", ""))
    return _shown_format(head) is BoxFormat.CXCYWH if said is None else said


def _leaves_out_a_class(index: GraphIndex, head: Head) -> bool:
    """True if the scores are fewer than the shares that a softmax has made."""
    scores = head.scores[0].tensor
    for node in makers(index, scores):
        if node.op_type == "Softmax":
            shares = shares_of(index, node)
            if shares is None and index.producer(scores, "Gather", "Slice", "Split"):
                raise Unrecognised("it is not clear whether its scores cover all classes")
            return None not in {shares, head.class_count} and shares != head.class_count
    return False


def _class_count(head: Head, named: list[str] | None, *, dropped: bool) -> int:
    """C, without what stands for no object, if that is to be dropped."""
    count = head.class_count
    if head.layout is Layout.ROWS and count is None:
        count = len(named) if named else UNKNOWN_CLASSES
    if count is not None and dropped:
        count -= 1
    if count is None or not 0 < count <= MAX_CLASSES:
        raise Unrecognised(f"the number of its classes is unclear ({count})")
    return count


def _anchor_count(index: GraphIndex, head: Head, size: Size | None = None) -> int | None:
    """N, or the number of rows. None where it depends on the input."""
    tensor = head.boxes[0].tensor
    if head.layout is Layout.SCALES:
        return head.grid.anchor_count if head.grid and size else None
    if head.layout is Layout.ROWS:
        return index.size(tensor, -2)
    batched = len(index.shapes[tensor]) == BATCHED
    return index.size(tensor, 1 if head.anchors_first else 2) if batched else None


def _most(index: GraphIndex, head: Head, family: Family) -> int | None:
    """The most detections that a family takes from a picture; None where any number."""
    if head.max_detections is not None or not family.gives_a_set:
        return head.max_detections
    if head.layout is Layout.END_TO_END:  # as many as the selection that `convert` has appended
        dims = index.shapes[index.graph.output[0].name]
        return known_size(dims[1]) if len(dims) == BATCHED else None
    return _anchor_count(index, head)


def recommended(
    metadata: dict[str, str], usual: float | None, names: tuple[str, ...]
) -> tuple[Confidences, float | None, Tiling | None, list[str]]:
    """The confidences, IoU and tiles that the metadata recommends, and what is ignored of it.

    A head that needs suppression has a usual IoU, for metadata that says nothing.
    """
    conf, nms = _confidences(metadata, names), _share(metadata.get(NMS_KEY)) or None
    tile = _tiling(metadata)
    ignored = [
        f"its metadata {key} is {metadata[key]!r:.80}, not {what}, so it is ignored"
        for key, value, what in (
            (CONF_KEY, conf, "a number from 0 to 1, or such of its classes, as in person=0.5"),
            (NMS_KEY, nms, "a number above 0 and at most 1"),
            (TILE_KEY, tile, "a size in pixels, as in 1024,crowd=10"),
        )
        if value is None and key in metadata
    ]
    conf = conf or NO_CONFIDENCES
    if usual is not None:
        return conf, nms or usual, tile, ignored
    if nms is not None:
        ignored.append(f"its metadata {NMS_KEY} is ignored: its head gives one box for each object")
    return conf, None, tile, ignored


def _tiling(metadata: dict[str, str]) -> Tiling | None:
    try:
        return Tiling.parse(metadata.get(TILE_KEY, ""))
    except UsageError:
        return None


def _confidences(metadata: dict[str, str], names: tuple[str, ...]) -> Confidences | None:
    try:
        said = Settings(**parse_conf(metadata.get(CONF_KEY, "")))
        return said.conf, (*class_conf_by_id(said.class_conf, names).items(),)
    except UsageError:
        return None


def _share(text: str | None) -> float | None:
    try:
        share = float(text or "")
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def _integers(text: str | None, count: int) -> list[int]:
    """Integers from metadata such as "32", "[640, 640]"; zeros for anything else."""
    parts = (text or "").strip("[]() ").split(",")
    numbers = [int(part) for part in parts if part.strip().isdecimal()]
    if len(numbers) == 1:
        numbers *= count
    return numbers if len(numbers) >= count else [0] * count


def _signatures(values: Sequence[onnx.ValueInfoProto]) -> str:
    listed = ", ".join(map(_signature, values[:MAX_LISTED])) or "none"
    rest = len(values) - MAX_LISTED
    return listed if rest <= 0 else f"{listed} and {rest} more"


def _signature(value: onnx.ValueInfoProto) -> str:
    dims = ", ".join("?" if dim is None else str(dim) for dim in shape(value))
    return f"{value.name} {type_name(value.type.tensor_type.elem_type)}[{dims}]"
