"""Detects one image with an engine alone: the least that a program can do, to be timed beside it.

    python tests/benchmarks/bare.py onnxruntime|openvino MODEL IMAGE

The model is YOLOv10 of Ultralytics' exporter, with an input of 640 x 640. OpenVINO keeps what it
compiled in the temporary folder, as detcli keeps it in its cache.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import typer  # noqa: F401  (any program with a command line has one)

SIDE = 640
GREY = 114
CONFIDENCE = 0.25

Network = Callable[[np.ndarray], np.ndarray]
"""From a batch of images, float32, N x 3 x H x W, to rows of x1, y1, x2, y2, score, class."""


def open_onnxruntime(model: str) -> Network:
    """Open a model with ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    input_name = session.get_inputs()[0].name
    return lambda images: session.run(None, {input_name: images})[0]


def open_openvino(model: str) -> Network:
    """Open a model with OpenVINO, which compiles it once and reads it from its cache later."""
    import openvino

    core = openvino.Core()
    core.set_property({"CACHE_DIR": str(Path(tempfile.gettempdir(), "bare-openvino"))})
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(model, "CPU", options)
    return lambda images: compiled(images)[0]


ENGINES = {"onnxruntime": open_onnxruntime, "openvino": open_openvino}


def letterbox(image: np.ndarray) -> np.ndarray:
    """Resize an image, H x W x 3, into the middle of a grey square of the network's input."""
    height, width = image.shape[:2]
    gain = min(SIDE / height, SIDE / width)
    resized = cv2.resize(image, (round(width * gain), round(height * gain)))
    canvas = np.full((SIDE, SIDE, 3), GREY, np.uint8)
    top = (SIDE - resized.shape[0]) // 2
    left = (SIDE - resized.shape[1]) // 2
    canvas[top : top + resized.shape[0], left : left + resized.shape[1]] = resized
    return canvas


def main() -> None:
    """Print a line for each detection."""
    usage = f"usage: bare.py {'|'.join(ENGINES)} MODEL IMAGE"
    if sys.argv[1:] == ["--help"]:  # not by argparse, which takes time to import
        print(usage)
        return
    if len(sys.argv) != 4 or sys.argv[1] not in ENGINES:
        sys.exit(usage)
    engine, model, image_path = sys.argv[1:]
    network = ENGINES[engine](model)
    image = cv2.imread(image_path)
    if image is None:
        sys.exit(f"cannot read {image_path}")
    batch = cv2.dnn.blobFromImage(letterbox(image), 1 / 255, swapRB=True)
    rows = network(batch)[0]
    for row in rows[rows[:, 4] > CONFIDENCE]:
        print(row.round(2).tolist())


if __name__ == "__main__":
    main()
