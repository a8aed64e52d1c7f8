"""Finds the head of a graph: which tensors are boxes and scores."""

from dataclasses import replace

import onnx

from detcli.core import frozen
from detcli.model.contract import Size, parse_names
from detcli.model.families import FAMILIES
from detcli.model.graph import GraphIndex
from detcli.model.heads import SELECTION, BoxDecode, GridSpec, Head, Unrecognised
from detcli.model.heads.joined import end_to_end, single_tensor
from detcli.model.heads.order import mixes_channels
from detcli.model.heads.pairs import best_class, has_patches, pair, plugin, queries, queries_of
from detcli.model.heads.raw_outputs import grid_heads, shapes_at
from detcli.model.heads.selected_in_graph import detections_head
from detcli.model.inputs import ImageInput
from detcli.model.metadata import FAMILY_KEY

PAIR = 2  # boxes and scores; more outputs than that may be landmarks, or those of several scales
SAY_WHICH = f'say which: detcli convert FILE --metadata "{FAMILY_KEY}=NAME" --output NEW'
MIXED = (
    "a Reshape in place of a Transpose mixes the channels of its last layers with their cells, so "
    "that no box is right"
)


@frozen
class HeadSearch:
    """The search for the head of a graph, and what is known before it."""

    model: onnx.ModelProto
    index: GraphIndex
    image: ImageInput
    metadata: dict[str, str]
    default_size: Size  # where the graph has no size of its own
    boxes_only: bool  # the boxes of graphs that give masks or keypoints too are asked for

    def head(self) -> Head:
        """Find the head.

        Raises:
            Unrecognised: There is none. Where a Reshape has mixed the channels, that is said.
        """
        try:
            return self._find()
        except Unrecognised as error:
            has_hint = len(error.args) > 1
            outputs = [output.name for output in self.index.graph.output]
            if not has_hint and mixes_channels(self.index, outputs):
                raise Unrecognised(MIXED) from error
            raise

    @property
    def _names(self) -> list[str] | None:
        return parse_names(self.metadata.get("names", ""))

    def _find(self) -> Head:
        """Find the head of a graph.

        Tensors are told apart by what makes them, never by name or order: with four classes, boxes
        and scores have one shape. Where a graph selects detections itself, the head is what it
        selects from, if that can be had without the selection; else what it selects is read as it
        is.
        """
        index = self.index
        boxes_only = self.boxes_only
        head = (
            end_to_end(index, boxes_only=boxes_only)
            or best_class(index)
            or queries(index)
            or plugin(index)
            or detections_head(index, boxes_only=boxes_only)
            or self._grid_of_outputs()
            or pair(index)
            or single_tensor(index, self._names, boxes_only=boxes_only)
        )

        if head is None or head.decoded is None or head.decodes(BoxDecode.LINEAR):
            head = self._grid(self.default_size) or head
        if head is None:
            raise Unrecognised(_why_not(index))
        if not head.of_queries:
            return head
        first_queries = queries_of(index, head.boxes[0].tensor)
        return replace(head, queries=first_queries, patches=has_patches(index))

    def _grid_of_outputs(self) -> Head | None:
        """A grid head at the size of the graph, or of more outputs than a pair, at the default."""
        head = self._grid(None)
        if head is None and len(self.index.graph.output) > PAIR:
            head = self._grid(self.default_size)
        return head

    def _grid(self, supposed_size: Size | None) -> Head | None:
        """The grid head that a graph ends in, told by the number of its cells.

        At the graph's own size (None), or, which takes longer, at one that is supposed.
        """
        family_names = self._families_with_grids(supposed_size)
        size = supposed_size or self.image.size
        if size is None or not family_names:
            return None
        if supposed_size is None:
            grids = grid_heads(self.index, self.index.shapes, size, family_names)
        else:
            shapes = shapes_at(self.model, self.image.name, size)
            grids = grid_heads(self.index, shapes, size, family_names)
        heads = list(grids)

        names = self._names
        if names:
            with_as_many_classes = [head for head in heads if head.class_count == len(names)]
            heads = with_as_many_classes or heads
        if len(heads) > 1:
            listed = " or ".join(family_names[head.grid.spec] for head in heads if head.grid)
            raise Unrecognised(
                f"it may be {listed}, which decode their boxes differently", SAY_WHICH
            )
        return heads[0] if heads else None

    def _families_with_grids(self, supposed_size: Size | None) -> dict[GridSpec, str]:
        """The grid heads that are looked for, and the family of each."""
        named_family = self.metadata.get(FAMILY_KEY)
        families = {}
        for family in FAMILIES:
            if family.grid is None or named_family not in {None, "", family.name}:
                continue
            # A size is supposed only where the graph has none of its own.
            if supposed_size is None or family.grid.takes_any_size or self.image.size is None:
                families[family.grid] = family.name
        return families


def _why_not(index: GraphIndex) -> str:
    """Why no head was found in a graph."""
    selecting = {node.op_type for node in index.graph.node} & SELECTION
    if selecting:
        listed = ", ".join(sorted(selecting))
        return f"it selects boxes itself ({listed}), and it is not clear where"
    output_shapes = [index.shapes[output.name] for output in index.graph.output]
    if len(output_shapes) != 1:
        return (
            f"it has {len(output_shapes)} outputs, and it is not clear which are boxes and which "
            "scores"
        )
    match len(output_shapes[0]):
        case 2:
            return "it classifies whole pictures: its output is [B, C]"
        case 4:
            return "it segments pictures, or its boxes are not decoded: its output is [B, C, H, W]"
    return "its output is not a detection head"
