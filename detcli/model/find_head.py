"""Finds the head of a graph: which tensors are boxes and scores."""

from dataclasses import replace

import onnx

from detcli.core import frozen
from detcli.model.contract import Size, parse_names
from detcli.model.families import FAMILIES
from detcli.model.graph import Dims, GraphIndex
from detcli.model.heads import SELECTION, BoxDecode, GridSpec, Head, Unrecognised
from detcli.model.heads.before_selection import (
    find_best_class_head,
    find_plugin_head,
    find_query_head,
)
from detcli.model.heads.end_to_end import find_end_to_end_head
from detcli.model.heads.joined import find_joined_head
from detcli.model.heads.order import mixes_channels
from detcli.model.heads.output_layouts import shapes_at, shapes_by_nodes
from detcli.model.heads.pairs import find_pair_head
from detcli.model.heads.queries import has_patches, queries_of
from detcli.model.heads.raw_outputs import grid_heads
from detcli.model.heads.selected_in_graph import find_detections_head
from detcli.model.inputs import ImageInput
from detcli.model.metadata import FAMILY_KEY

OUTPUTS_OF_PAIR = 2
"""How many outputs a graph has for boxes and scores; more may be landmarks or scales."""
SAY_WHICH = f'say which: detcli convert FILE --metadata "{FAMILY_KEY}=NAME" --output NEW'
MIXED = (
    "a Reshape in place of a Transpose mixes the channels of its last layers with their cells, so "
    "that no box is right"
)


@frozen
class HeadSearch:
    """The search for the detection head of an ONNX graph, and what is known before it.

    The head is the tensors that hold the boxes and scores, and how to read them.
    """

    model: onnx.ModelProto
    index: GraphIndex
    image: ImageInput
    metadata: dict[str, str]
    default_size: Size  # where the graph has no size of its own
    boxes_only: bool  # read the boxes of graphs that also output masks or keypoints

    def head(self) -> Head:
        """Find the tensors that hold the boxes and scores of the graph, and how to read them.

        Raises:
            Unrecognised: No head was found. If a Reshape mixes the channels of the last layers with
                their cells, that is given as the reason, unless the search has a hint for the user.
        """
        try:
            return self._find_head()
        except Unrecognised as error:
            # The arguments of the error are the reason, and a hint if there is one.
            has_hint = len(error.args) > 1
            if not has_hint and mixes_channels(self.index, self.index.outputs):
                raise Unrecognised(MIXED) from error
            raise

    @property
    def _names(self) -> list[str] | None:
        """The class names of the model's metadata; None if it has none."""
        return parse_names(self.metadata.get("names", ""))

    def _find_head(self) -> Head:
        """Find the head, and describe the queries of a transformer, which predict its boxes.

        Raises:
            Unrecognised: The graph has no head of a known kind, or more than one may be meant.
        """
        index = self.index
        head = self._first_head_of_known_kind()
        # Without a fixed image size, a grid head is recognised only if a size is assumed. What
        # looks like boxes may then be its raw outputs, which no node decodes.
        shows_decoding = (
            head is not None and head.decoded is not None and not head.decodes(BoxDecode.LINEAR)
        )
        if not shows_decoding:
            head = self._find_grid_head(self.default_size) or head
        if head is None:
            raise Unrecognised(_reason_without_head(index))

        if head.of_queries:
            queries = queries_of(index, head.boxes[0].tensor)
            return replace(head, queries=queries, patches=has_patches(index))
        return head

    def _first_head_of_known_kind(self) -> Head | None:
        """Try one kind of head after the other, and return the first that the graph has.

        Tensors are told apart by the nodes that compute them, never by name or order: with four
        classes, boxes and scores have the same shape.

        A graph may select detections itself, with TopK or non-maximum suppression. The tensors that
        it selects from are looked for first, and only then the tensors that it has selected.
        """
        index = self.index
        boxes_only = self.boxes_only
        return (
            find_end_to_end_head(index, boxes_only=boxes_only)
            or find_best_class_head(index)
            or find_query_head(index)
            or find_plugin_head(index)
            or find_detections_head(index, boxes_only=boxes_only)
            or self._find_grid_head_of_outputs()
            or find_pair_head(index)
            or find_joined_head(index, self._names, boxes_only=boxes_only)
        )

    def _find_grid_head_of_outputs(self) -> Head | None:
        """Find a grid head at the image size of the graph; None if there is none.

        A graph with more outputs than boxes and scores is tried at the default image size as well.
        """
        head = self._find_grid_head(None)
        if head is None and len(self.index.outputs) > OUTPUTS_OF_PAIR:
            head = self._find_grid_head(self.default_size)
        return head

    def _find_grid_head(self, supposed_size: Size | None) -> Head | None:
        """Find the grid head, which predicts boxes for each cell of grids laid over the image.

        It is recognised by the number of cells, which follows from the image size: 640 x 640 pixels
        and a stride of 32 give 400 cells.

        Args:
            supposed_size: Height and width to assume for the image; None for the size that the
                graph itself declares. An assumed size takes longer, as all shapes have to be
                inferred for it.

        Returns:
            None if there is no grid head, or no image size.

        Raises:
            Unrecognised: Families that decode boxes differently have such a head, and neither
                the metadata nor the number of classes tells them apart.
        """
        family_by_spec = self._families_with_grids(supposed_size)
        image_size = supposed_size or self.image.size
        if image_size is None or not family_by_spec:
            return None

        uses_declared_shapes = supposed_size is None
        if supposed_size is None:
            output_shapes: dict[str, Dims] = self.index.shapes
        else:
            output_shapes = shapes_at(self.model, self.image.name, supposed_size)

        possible_heads = list(grid_heads(self.index, output_shapes, image_size, family_by_spec))
        heads = self._with_named_classes(possible_heads)
        if not heads:
            return None
        if uses_declared_shapes:
            self._check_declared_shapes(heads)
        if len(heads) > 1:
            families = " or ".join(family_by_spec[head.grid.spec] for head in heads if head.grid)
            raise Unrecognised(
                f"it may be {families}, which decode their boxes differently", SAY_WHICH
            )
        return heads[0]

    def _with_named_classes(self, heads: list[Head]) -> list[Head]:
        """Choose the heads with as many classes as the file names, or all if none has."""
        class_names = self._names
        if not class_names:
            return heads
        fitting_heads = [head for head in heads if head.class_count == len(class_names)]
        return fitting_heads or heads

    def _check_declared_shapes(self, heads: list[Head]) -> None:
        """Refuse a graph if its outputs do not have the declared shapes.

        A grid head and its family are recognised by the shapes of the outputs. Wrong ones would
        lead to a different family, whose boxes are decoded differently.

        Args:
            heads: The grid heads that the declared shapes match.

        Raises:
            Unrecognised: An output's axis has a size other than the declared one. The batch axis
                is ignored.
        """
        tensors: list[str] = []
        for head in heads:
            tensors.extend(head.tensors)
        computed_shapes = self._shapes_by_nodes(tensors)
        for tensor in tensors:
            declared = self.index.shapes[tensor]
            computed = computed_shapes[tensor]
            if computed and _shapes_contradict(declared, computed):
                raise Unrecognised(
                    f"its file declares the shape {declared} for its output {tensor}, but its "
                    f"nodes compute {computed}",
                    "export the model again; its file does not say what it does",
                )

    def _shapes_by_nodes(self, tensors: list[str]) -> dict[str, Dims]:
        """Infer shapes from the nodes alone, whatever the file declares.

        Where this leaves the shape of one of `tensors` open, all are inferred for the size of the
        input: nodes may compute the shape of a Reshape, which takes longer to follow.
        """
        shapes: dict[str, Dims] = shapes_by_nodes(self.model).shapes
        are_known = all(shapes[tensor] and None not in shapes[tensor] for tensor in tensors)
        if are_known or self.image.size is None:
            return shapes
        return shapes_at(self.model, self.image.name, self.image.size)

    def _families_with_grids(self, supposed_size: Size | None) -> dict[GridSpec, str]:
        """Choose the families whose grid heads to look for: all, or the one in the metadata.

        A size is assumed only for a graph that may take it. That is a graph that does not declare a
        size, or whose family takes any size, whatever its files declare.

        Args:
            supposed_size: Height and width that are assumed for the image; None for the size that
                the graph declares.

        Returns:
            The names of the families, by the specification of their grid head.
        """
        named_family = self.metadata.get(FAMILY_KEY)
        family_by_spec = {}
        for family in FAMILIES:
            if family.grid is None:
                continue
            if named_family and named_family != family.name:
                continue
            may_take_supposed_size = self.image.size is None or family.grid.takes_any_size
            if supposed_size is None or may_take_supposed_size:
                family_by_spec[family.grid] = family.name
        return family_by_spec


def _shapes_contradict(declared: Dims, computed: Dims) -> bool:
    """True if two shapes of an output cannot both be right.

    The first axis is not compared. It is the batch: an output without one got it from `tidy`.
    """
    if len(declared) != len(computed):
        return True
    for declared_size, computed_size in zip(declared[1:], computed[1:], strict=True):
        are_numbers = isinstance(declared_size, int) and isinstance(computed_size, int)
        if are_numbers and declared_size != computed_size:
            return True
    return False


def _reason_without_head(index: GraphIndex) -> str:
    """Describe a graph in which no head was found, for the message of the error."""
    selecting = {node.op_type for node in index.graph.node} & SELECTION
    if selecting:
        listed = ", ".join(sorted(selecting))
        return f"it selects boxes itself ({listed}), and it is not clear where"
    output_shapes = [index.shapes[name] for name in index.outputs]
    if len(output_shapes) != 1:
        return (
            f"it has {len(output_shapes)} outputs, and it is not clear which are boxes and which "
            "scores, if any"
        )
    match len(output_shapes[0]):
        case 2:
            return "it gives values of whole images, as a classifier does: its output is [B, C]"
        case 4:
            return (
                "it gives maps of images, as for segments or heat, or its boxes are not decoded: "
                "its output is [B, C, H, W]"
            )
    return "its output is not a detection head"
