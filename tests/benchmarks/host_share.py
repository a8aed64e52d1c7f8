"""Compares whole runs of detcli with plain loops, with a network so small that the rest dominates.

    python tests/benchmarks/host_share.py FOLDER [--images 4000] [--rounds 5] [--batch 1 32]

FOLDER has JPEGs, from which the images are made: 320 x 240 pixels, as many as `--images` says. The
network is made here, too: three convolutions on 320 x 320 pixels, and a head of 525 anchors with
ten detections. A plain loop reads, decodes and runs the network on one core, and keeps nothing;
one of the two also prepares the image. All take turns. What the start takes is subtracted: it is
measured with a tenth of the images. Printed are milliseconds of processors and of the clock for an
image, and the processor time in times of that of each loop.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 320
IMAGE_SIZE = (320, 240)  # width and height
GREY = 114
ANCHORS, CLASSES, DETECTIONS = 525, 80, 10
CHANNELS_AND_STRIDES = ((8, 4), (16, 2), (32, 2))
LOOPS = {"decode": "loop without preparing", "prepare": "loop with preparing"}
"""The loops, each with its title."""

MIN_IMAGES = 100


class Cost(NamedTuple):
    """What an image takes."""

    processor_ms: float
    wall_ms: float


def convolutions(generator: np.random.Generator) -> tuple[list, list]:
    """Make the nodes and weights of the network's convolutions, from `images` to `features`."""
    nodes = []
    weights = []
    layer_input = "images"
    input_channels = 3
    for index, (channels, stride) in enumerate(CHANNELS_AND_STRIDES):
        kernel = generator.standard_normal((channels, input_channels, 3, 3)) * 0.1
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"kernel{index}"))
        nodes.append(
            helper.make_node(
                "Conv",
                [layer_input, f"kernel{index}"],
                [f"convolved{index}"],
                strides=[stride, stride],
                pads=[1, 1, 1, 1],
            )
        )
        layer_input = f"layer{index}"
        nodes.append(helper.make_node("Relu", [f"convolved{index}"], [layer_input]))
        input_channels = channels
    nodes.append(helper.make_node("Identity", [layer_input], ["features"]))
    return nodes, weights


def network() -> onnx.ModelProto:
    """Make a detector that finds the same ten boxes in each image."""
    generator = np.random.default_rng(0)
    nodes, weights = convolutions(generator)
    boxes = generator.uniform(60, 260, (1, 4, ANCHORS)).astype(np.float32)
    boxes[:, 2:] = generator.uniform(10, 40, (1, 2, ANCHORS))  # width and height
    logits = np.full((1, CLASSES, ANCHORS), -7, np.float32)
    detected_anchors = np.arange(DETECTIONS) * (ANCHORS // DETECTIONS)
    detected_classes = generator.integers(0, CLASSES, DETECTIONS)
    logits[0, detected_classes, detected_anchors] = generator.uniform(0, 3, DETECTIONS)
    weights += [
        numpy_helper.from_array(boxes, "boxes"),
        numpy_helper.from_array(logits, "logits"),
        numpy_helper.from_array(np.zeros(1, np.float32), "zero"),
    ]
    nodes += [
        # A zero for each image, so that the head has as many as the batch.
        helper.make_node("ReduceMean", ["features"], ["row_mean"], keepdims=1, axes=[1, 2]),
        helper.make_node("ReduceMean", ["row_mean"], ["mean"], keepdims=0, axes=[3]),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["boxes", "nothing"], ["head_boxes"]),
        helper.make_node("Add", ["logits", "nothing"], ["head_logits"]),
        helper.make_node("Sigmoid", ["head_logits"], ["scores"]),
        helper.make_node("Concat", ["head_boxes", "scores"], ["output0"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [
            helper.make_tensor_value_info(
                "output0", TensorProto.FLOAT, ["batch", 4 + CLASSES, ANCHORS]
            )
        ],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def make_images(originals: list[Path], folder: Path, count: int) -> None:
    """Write small JPEGs that show the originals, one after the other and again."""
    folder.mkdir()
    photographs = [cv2.imread(str(path)) for path in originals]
    for index in range(count):
        photograph = photographs[index % len(photographs)]
        assert photograph is not None
        small = cv2.resize(photograph, IMAGE_SIZE, interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(folder / f"{index:05}.jpg"), small)


def prepared(image: np.ndarray) -> np.ndarray:
    """Put an image into the middle of a grey square, and make the network's input of it."""
    height, width = image.shape[:2]
    canvas = np.full((SIDE, SIDE, 3), GREY, np.uint8)
    top = (SIDE - height) // 2
    left = (SIDE - width) // 2
    canvas[top : top + height, left : left + width] = image
    tensor = np.ascontiguousarray(canvas[..., ::-1].transpose(2, 0, 1)[None], np.float32)
    tensor /= 255
    return tensor


def run_loop(kind: str, model: str, folder: str) -> None:
    """Run the network on each image of a folder, as a short script does; the child process."""
    import onnxruntime

    cv2.setNumThreads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    tensor = np.zeros((1, 3, SIDE, SIDE), np.float32)
    for path in sorted(Path(folder).iterdir()):
        image = cv2.imread(str(path))
        assert image is not None
        if kind == "prepare":
            tensor = prepared(image)
        session.run(None, {"images": tensor})


def seconds_of(command: list[str]) -> tuple[float, float]:
    """Run a command, and return the seconds of processors and of the clock that it takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user_s = after.ru_utime - before.ru_utime
    kernel_s = after.ru_stime - before.ru_stime
    return user_s + kernel_s, wall_s


def cost_of_image(command: list[str], few: Path, many: Path) -> Cost:
    """Run a command on few images and on many, and return what one more image takes."""
    more_images = len(list(many.iterdir())) - len(list(few.iterdir()))
    few_processor_s, few_wall_s = seconds_of([*command, str(few)])
    many_processor_s, many_wall_s = seconds_of([*command, str(many)])
    return Cost(
        1000 * (many_processor_s - few_processor_s) / more_images,
        1000 * (many_wall_s - few_wall_s) / more_images,
    )


def measure(options: argparse.Namespace, work: Path) -> dict[str, list[Cost]]:
    """Make the images and the network, and measure all commands in turns."""
    originals = sorted(options.folder.glob("*.jpg"))
    few, many = work / "few", work / "many"
    make_images(originals, few, options.images // 10)
    make_images(originals, many, options.images)
    model = work / "tiny.onnx"
    onnx.save(network(), model)

    predict = [sys.executable, "-m", "detcli", "predict", "-m", str(model), "--device", "cpu"]
    predict += ["--box-format", "cxcywh", "-q", "-o", str(work / "boxes.jsonl")]
    commands = {}
    for kind, title in LOOPS.items():
        commands[title] = [sys.executable, __file__, "--loop", kind, str(model)]
    for batch in options.batch:
        commands[f"detcli --batch {batch}"] = [*predict, "--batch", str(batch)]

    for command in commands.values():
        seconds_of([*command, str(few)])  # fills the prepared-model cache and the file cache
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            costs[name].append(cost_of_image(command, few, many))
    return costs


def main() -> None:
    """Measure and print; or be the child process that runs a loop."""
    if sys.argv[1:2] == ["--loop"]:
        run_loop(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    options = parser.parse_args()
    if options.images < MIN_IMAGES:
        parser.error(f"--images: at least {MIN_IMAGES}")
    with tempfile.TemporaryDirectory() as work:
        costs = measure(options, Path(work))
    medians = {}
    for name, rounds in costs.items():
        medians[name] = Cost(*(statistics.median(values) for values in zip(*rounds, strict=True)))
    for name, cost in medians.items():
        print(f"{name:24} {cost.processor_ms:.2f} ms of processors, {cost.wall_ms:.2f} ms")
        for title in LOOPS.values():
            ratio = cost.processor_ms / medians[title].processor_ms
            print(f"    {ratio:.2f} times the {title}")


if __name__ == "__main__":
    main()
