"""A detector of queries whose answers are known: it finds cells of pure colour, as a DETR would.

Each 8x8 cell of a 64x64 image is a query; its logits rise with one colour and fall with the
others. The boxes are the cells, as fractions of the input. The image passes two convolutions that
change nothing, so that there is one to quantise.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from detcli.model.preprocessing import METADATA_KEY

CELLS = 8
QUERIES = CELLS * CELLS
TAILS = ("pair", "deploy", "rows")
SELECTION = """
    probable = Sigmoid (logits)
    flat = Flatten <axis = 1> (probable)
    scores, positions = TopK <axis = -1> (flat, keep)
    query = Div (positions, classes)
    whole = Mul (query, classes)
    labels = Sub (positions, whole)
    column = Unsqueeze (query, last)
    index = Expand (column, box_shape)
"""
DEPLOY = f"""
    x, y, width, height = Split <axis = 2> (cxcywh, ones)
    half_width = Mul (width, half)
    half_height = Mul (height, half)
    left = Sub (x, half_width)
    top = Sub (y, half_height)
    right = Add (x, half_width)
    bottom = Add (y, half_height)
    corners = Concat <axis = 2> (left, top, right, bottom)
    sides = Cast <to = 1> (orig_target_sizes)
    both = Concat <axis = 1> (sides, sides)
    factors = Unsqueeze (both, middle)
    pixels = Mul (corners, factors)
    {SELECTION}
    boxes = GatherElements <axis = 1> (pixels, index)
"""
ROWS = f"""
    {SELECTION}
    chosen = GatherElements <axis = 1> (cxcywh, index)
    score_column = Unsqueeze (scores, last)
    number = Cast <to = 1> (labels)
    label_column = Unsqueeze (number, last)
    rows = Concat <axis = 2> (chosen, score_column, label_column)
"""


def build(
    tail="pair",
    *,
    attention=None,
    keep=20,
    side=1 / CELLS,
    no_object=False,
    grown=False,
    metadata=None,
):
    """Build the graph.

    Args:
        tail: "pair" ends in boxes and logits; "deploy" selects labels, boxes in pixels of
            orig_target_sizes and scores; "rows" selects `[1, keep, 6]`, boxes as fractions.
        attention: The queries attend to one another, with products of up to this.
        keep: How many detections the graph selects.
        side: Of each box, as a fraction of the input; boxes larger than cells reach beyond it.
        no_object: A softmax is due, and one more class is that of no object, as in DETR; else
            boxes are refined, and the best of all cells are the queries, as in RT-DETR; all are,
            in their order.
        grown: Sizes are exponentials, joined to the centres, as in RF-DETR.
        metadata: As the file has it.
    """
    classes = 4 if no_object else 3
    attend = """
        strong = Mul (begin, gain)
        keys = Transpose <perm = [0, 2, 1]> (begin)
        products = MatMul (strong, keys)
        shares = Softmax <axis = -1> (products)
        queries = MatMul (shares, begin)
    """
    best = """
        unseen = MatMul (colours, zeros)
        least = ReduceMax <axes = [2], keepdims = 0> (unseen)
        ranks = Add (least, falling)
        ranked, order = TopK <axis = 1> (ranks, all)
        each = Unsqueeze (order, last)
        numbers = Expand (each, colour_shape)
        begin = GatherElements <axis = 1> (colours, numbers)
    """
    refined = """
        shifted = Add (nothing, places)
        near = Sigmoid (shifted)
        far = Sub (one, near)
        ratio = Div (near, far)
        inverse = Log (ratio)
        moved = Add (nothing, inverse)
    """
    plain = """
        places_too = Concat <axis = 2> (nothing, places)
        moved = MatMul (places_too, picks)
    """
    larger = """
        x_y, factors_of_size = Split <axis = 2> (nothing, halves)
        earlier = Sigmoid (places)
        earlier_x_y, earlier_size = Split <axis = 2> (earlier, halves)
        offsets = Mul (x_y, earlier_size)
        centres = Add (offsets, earlier_x_y)
        factor = Exp (factors_of_size)
        sizes = Mul (factor, earlier_size)
        cxcywh = Concat <axis = 2> (centres, sizes)
    """
    outputs = {
        "pair": f"float[1, {QUERIES}, {classes}] logits, float[1, {QUERIES}, 4] cxcywh",
        "deploy": f"int64[1, {keep}] labels, float[1, {keep}, 4] boxes, float[1, {keep}] scores",
        "rows": f"float[1, {keep}, 6] rows",
    }[tail]
    selection = {"pair": "", "deploy": DEPLOY, "rows": ROWS}[tail]
    sizes = ", int64[1, 2] orig_target_sizes" if tail == "deploy" else ""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        queries (float[1, 3, 64, 64] images{sizes}) => ({outputs}) {{
            early = Conv <pads = [1, 1, 1, 1]> (images, kernel)
            seen = Conv <pads = [1, 1, 1, 1]> (early, kernel)
            cells = AveragePool <kernel_shape = [8, 8], strides = [8, 8]> (seen)
            planes = Reshape (cells, planar)
            colours = Transpose <perm = [0, 2, 1]> (planes)
            {"begin = Identity (colours)" if no_object else best}
            {"queries = Identity (begin)" if attention is None else attend}
            raw = MatMul (queries, weights)
            logits = Add (raw, bias)
            nothing = MatMul (queries, zeros)
            {larger if grown else plain if no_object else refined}
            {"" if grown else "cxcywh = Sigmoid (moved)"}
            {selection}
        }}
    """)
    used = set()
    for node in model.graph.node:
        used.update(node.input)
    for name, value in _constants(classes, attention, keep, side).items():
        if name in used:
            model.graph.initializer.append(numpy_helper.from_array(value, name))
    helper.set_model_props(model, metadata or {})
    onnx.checker.check_model(model)
    return model


def named(tail="pair", **options):
    """The same, with the names of its classes."""
    return build(tail, metadata={"names": "['red', 'green', 'blue']"}, **options)


def beside(model, preprocess):
    """A copy whose metadata says how images are prepared."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.metadata_props.add(key=METADATA_KEY, value=preprocess)
    return copy


def _constants(classes, attention, keep, side):
    kernel = np.zeros((3, 3, 3, 3), np.float32)
    kernel[range(3), range(3), 1, 1] = 1
    rows, columns = np.mgrid[:CELLS, :CELLS]
    centres = np.stack([columns, rows], axis=-1).reshape(QUERIES, 2) / CELLS + 1 / (2 * CELLS)
    boxes = np.concatenate([centres, np.full((QUERIES, 2), side)], axis=1)
    weights = np.full((3, classes), -10, np.float32)
    weights[range(3), range(3)] = 20
    bias = np.full(classes, -8, np.float32)
    if classes == 4:
        weights[:, 3], bias[3] = 0, 0
    return {
        "kernel": kernel,
        "planar": np.array([0, 3, QUERIES]),
        "gain": np.float32(attention or 1),
        "weights": weights,
        "bias": bias,
        "zeros": np.zeros((3, 4), np.float32),
        "falling": np.arange(QUERIES, 0, -1, np.float32)[np.newaxis],  # type: ignore[call-overload]
        "all": np.array([QUERIES]),
        "colour_shape": np.array([1, 1, 3]),
        "picks": np.eye(8, 4, -4, np.float32),
        "places": np.log(boxes / (1 - boxes)).astype(np.float32)[np.newaxis],
        "one": np.float32(1),
        "half": np.float32(0.5),
        "halves": np.array([2, 2]),
        "ones": np.array([1, 1, 1, 1]),
        "middle": np.array([1]),
        "last": np.array([2]),
        "keep": np.array([keep]),
        "classes": np.array(classes),
        "box_shape": np.array([1, 1, 4]),
    }
