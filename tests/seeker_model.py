"""A detector that finds orange in pictures that are prepared in one way, and nothing in others.

Each cell of 8x8 scores as much as it is near to what orange becomes in that way; its box is the
square of 32x32 around it. By its structure it is a YOLO, and the file says no more.
"""

import colour_model
import numpy as np
import onnx
from onnx import helper, numpy_helper

from detcli.core.opencv import cv2

ORANGE = (20, 120, 250)  # BGR
SIDE, SQUARE = 128, 40  # pixels

Normal = tuple[np.ndarray, np.ndarray]
IMAGENET: Normal = (np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225]))
UNIT: Normal = (np.zeros(3), np.ones(3))
SIGNED: Normal = (np.full(3, 0.5), np.full(3, 0.5))
LEVELS: Normal = (np.zeros(3), np.full(3, 1 / 255))
LESS_MEAN: Normal = (np.array([123.675, 116.28, 103.53]) / 255, np.full(3, 1 / 255))


def build(normal=UNIT, *, bgr=False, hidden=""):
    """Build the graph.

    Args:
        normal: Mean and standard deviation of red, green and blue, as shares of 1.
        bgr: It wants the channels as blue, green, red.
        hidden: "xyxy" or "cxcywh", for boxes that are so although the nodes do not show it.
    """
    tail = "one-to-many" if hidden == "cxcywh" else "body"
    model = colour_model.build(
        tail, size=SIDE, metadata={"names": str(dict(enumerate(colour_model.NAMES)))}
    )
    mean, std = normal
    target = (np.array(ORANGE[::-1]) / 255 - mean) / std
    if bgr:
        target, std = target[::-1], std[::-1]
    # Each channel of the score falls with the distance from the target, in shares of 1.
    slope = np.tile(-3 * std, (3, 1)).reshape(3, 3, 1, 1)
    nodes = [
        helper.make_node("Sub", ["cells", "target"], ["off"]),
        helper.make_node("Abs", ["off"], ["far"]),
        helper.make_node("Conv", ["far", "slope"], ["scored"]),
        helper.make_node("Add", ["scored", "one_more"], ["near"]),
        helper.make_node("Mul", ["near", "only_first"], ["once"]),
        helper.make_node("Relu", ["once"], ["matched"]),
    ]
    constants = {
        "target": target.reshape(1, 3, 1, 1),
        "slope": slope,
        "one_more": np.ones(1),
        "only_first": np.array([1, 0, 0]).reshape(1, 3, 1, 1),
        "reach": np.array(2.0),  # cells from the middle of a box to its sides
    }
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    by_output = {node.output[0]: node for node in model.graph.node}
    by_output["scores"].input[0] = "matched"
    by_output["distance"].input[1] = "reach"
    if hidden:  # a number is what is positive of it less what is negative
        nodes += [
            helper.make_node("Relu", ["boxes"], ["positive"]),
            helper.make_node("Sub", ["positive", "boxes"], ["negative"]),
            helper.make_node("Sub", ["positive", "negative"], ["hidden"]),
        ]
        by_output["head"].input[0] = "hidden"
    place = list(model.graph.node).index(by_output["scores"])
    for node in reversed(nodes[:6]):
        model.graph.node.insert(place, node)
    place = list(model.graph.node).index(by_output["head"])
    for node in reversed(nodes[6:]):
        model.graph.node.insert(place, node)
    onnx.checker.check_model(model)
    return model


def write_pictures(folder, random, count=8):
    """Write grey pictures with an orange square each; return the squares' x and y."""
    folder.mkdir(parents=True, exist_ok=True)
    corners = []
    for number in range(count):
        picture = np.full((SIDE, SIDE, 3), 90, np.uint8)
        x, y = (8 * random.integers(0, (SIDE - SQUARE) // 8 + 1, 2)).tolist()
        picture[y : y + SQUARE, x : x + SQUARE] = ORANGE
        cv2.imwrite(str(folder / f"{number}.png"), picture)
        corners.append((x, y))
    return corners
