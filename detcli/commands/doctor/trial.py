"""A small detector, really run on a device: the only proof that a device is usable.

It has everything that a real one has: a convolution, which needs cuDNN on a GPU; a head, which
needs the kernels there; and boxes, which are known beforehand.
"""

from typing import Any

from detcli.commands.doctor.privacy import scrub

SIDE, STRIDE = 32, 2
ANCHORS = (SIDE // STRIDE) ** 2
BOX = (4.0, 4.0, 12.0, 20.0)
NAMES = ("red", "green")
CONFIDENCE = 0.5
GREY = 114
BLOCKS = {"red": (3, 5, 2, 255), "green": (9, 1, 1, 204)}  # row, column, channel (BGR), value
EXPECTED = [("red", 1.0, BOX), ("green", 0.8, BOX)]
TOLERANCE = 0.01  # TensorRT rounds more than the others


def trial(device: str) -> dict[str, str] | None:
    """Detect on a picture with a red and a green block.

    Args:
        device: As for `--device`.

    Returns:
        None if just these were found, else what went wrong: "reason" and "hint".
    """
    from detcli.errors import DetcliError

    try:
        found = _detect(device)
    except DetcliError as error:
        return {"reason": scrub(str(error)), "hint": error.hint}
    if len(found) == len(EXPECTED) and all(map(_alike, found, EXPECTED)):
        return None
    reason = f"a small detector gave wrong boxes: {found}, where {EXPECTED} is right"
    return {"reason": reason, "hint": "report this; and use --device cpu"}


def _alike(left: tuple[str, float, Any], right: tuple[str, float, Any]) -> bool:
    numbers = zip((left[1], *left[2]), (right[1], *right[2]), strict=True)
    return left[0] == right[0] and all(abs(a - b) <= TOLERANCE for a, b in numbers)


def _detect(device: str) -> list[tuple[str, float, tuple[float, ...]]]:
    """Name, score and box of what is found."""
    import numpy as np

    from detcli.backend import open_backend
    from detcli.backend.postprocess import SelectionOptions
    from detcli.geometry import Letterbox
    from detcli.model.prepared import PreparedModel

    image = np.full((SIDE, SIDE, 3), GREY, np.uint8)
    for row, column, channel, value in BLOCKS.values():
        corner = np.s_[row * STRIDE : (row + 1) * STRIDE, column * STRIDE : (column + 1) * STRIDE]
        image[corner] = 0
        image[(*corner, channel)] = value
    backend = open_backend(device, PreparedModel("trial", _contract(), _graph()))
    try:
        letterboxes = [Letterbox.fit((SIDE, SIDE), (SIDE, SIDE))]
        head = backend.infer(backend.prepare([image], letterboxes))
        (found,) = backend.select(
            head, letterboxes, SelectionOptions(CONFIDENCE, 300, None, None)
        )()
        return [
            (NAMES[class_id], round(float(score), 4), tuple(round(float(x), 2) for x in box))
            for box, score, class_id in zip(found.xyxy, found.score, found.class_id, strict=True)
        ]
    finally:
        backend.close()


def _contract() -> Any:  # noqa: ANN401 - of a module that is imported here
    from detcli.model.contract import BoxFormat, Contract, Layout

    return Contract(
        layout=Layout.BODY,
        head="head",
        anchors_first=False,
        box_format=BoxFormat.XYXY,
        class_count=len(NAMES),
        anchor_count=ANCHORS,
        input_name="images",
        input_dtype="float32",
        batch=1,
        input_size=(SIDE, SIDE),
        default_size=(SIDE, SIDE),
        stride=STRIDE,
        names=NAMES,
        names_origin="trial",
    )


def _graph() -> bytes:
    """Box rows that are constant, and the red and green of each block's first pixel as scores."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    weights = np.zeros((6, 3, STRIDE, STRIDE), np.float32)  # (out, in, kernel height, width)
    weights[4, 0, 0, 0] = weights[5, 1, 0, 0] = 1
    arrays = {
        "weights": weights,
        "biases": np.array([*BOX, 0, 0], np.float32),
        "shape": np.array([1, 6, ANCHORS]),
    }
    nodes = [
        helper.make_node("Conv", ["images", "weights", "biases"], ["map"], strides=[STRIDE] * 2),
        helper.make_node("Reshape", ["map", "shape"], ["head"]),
    ]
    graph = helper.make_graph(
        nodes,
        "trial",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("head", TensorProto.FLOAT, [1, 6, ANCHORS])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    # The versions that every ONNX Runtime reads which detcli admits.
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return bytes(model.SerializeToString())
