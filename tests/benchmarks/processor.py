"""Times a folder of images, warm, file to record: ONNX Runtime and OpenVINO, in turns.

    python tests/benchmarks/processor.py MODEL FOLDER [--int8 FILE] [--rounds 5]
        [--yolo FOLDER ...] [--ncnn FOLDER] [--only TEXT ...]

MODEL has a static input and is float32; `--int8` takes a quantised copy of it. The plain loops are
the most that a script can do: cv2.imread and letterbox in one thread, OpenVINO's own asynchronous
queue with its THROUGHPUT hint for the network, and the rows left unselected. `--yolo` adds folders
that `yolo export format=openvino` has written, where Ultralytics is installed, and `--ncnn` one of
`format=ncnn`. The network alone is one tensor run again and again, by as many requests as the
device wants. `--only` leaves out what has none of these texts in its name, except the CPU's.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import openvino
from in_turns import medians_of, take_turns, yolo

from detcli import DeviceOptions
from detcli.backend.preprocess import letterbox_image, to_tensor
from detcli.config.device import available_cores
from detcli.core.errors import DeviceError
from detcli.data.geometry import Letterbox
from detcli.run import keep_freed_memory
from detcli.run.batches import BatchDetector
from detcli.run.pipeline import Pipeline
from detcli.source.sources import Sources

ALONE = 32  # runs of the network in a sample


def detcli(model: Path, folder: Path, device: str, *, half: bool = False) -> Callable[[], int]:
    """The pipeline of `detcli predict`."""
    options = DeviceOptions(workers=available_cores(), half=half)
    detector = BatchDetector(model, device, options=options)

    def run() -> int:
        with Sources([str(folder)]) as sources:
            clones = [device] * (detector.workers - 1)
            count = 0
            for _ in Pipeline(detector, detector.batch_size, clones).run(sources):
                count += 1
            return count

    return run


def queue_of(model: Path, precision: str) -> openvino.AsyncInferQueue:
    """OpenVINO's own queue."""
    config = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "THROUGHPUT"}
    return openvino.AsyncInferQueue(openvino.Core().compile_model(model, "CPU", config))


def plain_loop(model: Path, paths: list[Path], precision: str) -> Callable[[], int]:
    """The loop of a script that knows OpenVINO well."""
    queue = queue_of(model, precision)
    heads: list[np.ndarray] = []
    queue.set_callback(lambda request, _: heads.append(request.get_output_tensor().data.copy()))

    def run() -> int:
        heads.clear()
        for path in paths:
            image = cv2.imread(str(path))
            canvas = letterbox_image(image, Letterbox.fit(image.shape[:2], (640, 640)))  # type: ignore[arg-type]
            tensor = np.empty((1, 3, 640, 640), np.float32)
            to_tensor(canvas, tensor[0])
            queue.start_async(tensor)
        queue.wait_all()
        return len(heads)

    return run


def network_alone(model: Path, precision: str) -> Callable[[], int]:
    """The network of OpenVINO without anything around it."""
    queue, tensor = queue_of(model, precision), np.full((1, 3, 640, 640), 0.5, np.float32)

    def run() -> int:
        for _ in range(ALONE):
            queue.start_async(tensor)
        queue.wait_all()
        return ALONE

    return run


def by_ncnn(folder: Path) -> Callable[[], int]:
    """The network of ncnn without anything around it."""
    import ncnn

    network, tensor = ncnn.Net(), ncnn.Mat(np.full((3, 640, 640), 0.5, np.float32))
    network.opt.num_threads = available_cores()
    network.load_param(str(folder / "model.ncnn.param"))
    network.load_model(str(folder / "model.ncnn.bin"))

    def run() -> int:
        for _ in range(ALONE):
            with network.create_extractor() as extractor:
                extractor.input("in0", tensor)
                extractor.extract("out0")
        return ALONE

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--int8", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--yolo", type=Path, nargs="*", default=[])
    parser.add_argument("--ncnn", type=Path)
    parser.add_argument("--only", nargs="*", default=[""])
    options = parser.parse_args()
    keep_freed_memory()
    model, folder = options.model, options.folder
    paths = sorted(folder.glob("*.jpg"))
    runners = {
        "detcli, cpu": detcli(model, folder, "cpu"),
        "detcli, openvino f32": detcli(model, folder, "openvino"),
        "plain loop, f32": plain_loop(model, paths, "f32"),
        "network alone, f32": network_alone(model, "f32"),
    }
    try:
        runners["detcli, openvino bf16"] = detcli(model, folder, "openvino", half=True)
        runners["plain loop, bf16"] = plain_loop(model, paths, "bf16")
        runners["network alone, bf16"] = network_alone(model, "bf16")
        halves = [False, True]
    except DeviceError as error:
        print(f"no bf16: {error}")
        halves = [False]
    for half in halves if options.int8 else ():
        rest = "bf16" if half else "f32"
        name = f"int8+{rest}"
        runners[f"detcli, openvino {name}"] = detcli(options.int8, folder, "openvino", half=half)
        runners[f"plain loop, {name}"] = plain_loop(options.int8, paths, rest)
        runners[f"network alone, {name}"] = network_alone(options.int8, rest)
    for path in options.yolo:
        runners[f"yolo predict, {path.name}"] = yolo(path, paths)
    if options.ncnn:
        runners["network alone, ncnn"] = by_ncnn(options.ncnn)
    selected_runners = {}
    for name, runner in runners.items():
        for text in ["detcli, cpu"] + options.only:
            if text in name:
                selected_runners[name] = runner
    counts = {name: runner() for name, runner in selected_runners.items()}  # also the warm-up
    medians = medians_of(take_turns(selected_runners, rounds=options.rounds))
    cpu_rate = counts["detcli, cpu"] / medians["detcli, cpu"]
    for name, median in medians.items():
        rate = counts[name] / median
        print(f"{name:28} {rate:6.1f} a second  {rate / cpu_rate:5.2f} times cpu's")


if __name__ == "__main__":
    main()
