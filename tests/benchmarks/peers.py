"""Times whole processes, on a folder and on one image of it, in turns: detcli and its peers.

    python tests/benchmarks/peers.py MODEL FOLDER [--rounds 5] [--yolo PROGRAM] [--alone 10]

MODEL is an end-to-end export with a static input. The loops are what a short script does with
ONNX Runtime or OpenVINO: cv2.imread, letterbox, divide by 255, run, print the rows above 0.25.
`--yolo` is Ultralytics' program of another environment. OpenVINO's benchmark_app runs the network
alone, for so many seconds. A start is what one image takes; the rate is that of the others.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

LOOP = """
import sys
from pathlib import Path
import cv2, numpy as np
kind, model, source = sys.argv[1:]
if kind == "onnxruntime":
    import onnxruntime
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    run = lambda tensor: session.run(None, {name: tensor})[0]
else:
    import openvino
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": kind})
    run = lambda tensor: compiled(tensor)[0]
source = Path(source)
for path in sorted(source.glob("*.jpg")) if source.is_dir() else [source]:
    image = cv2.imread(str(path))
    gain = min(640 / side for side in image.shape[:2])
    height, width = (round(side * gain) for side in image.shape[:2])
    canvas = np.full((640, 640, 3), 114, np.uint8)
    top, left = (640 - height) // 2, (640 - width) // 2
    canvas[top : top + height, left : left + width] = cv2.resize(image, (width, height))
    tensor = canvas[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255
    rows = run(np.ascontiguousarray(tensor))[0]
    print(path, rows[rows[:, 4] > 0.25].tolist())
"""


def run(command: list[str]) -> tuple[float, float]:
    """Run a command: its seconds, and the MB of its peak."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        complaint = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)}: {complaint.decode()[-2000:]}")
    return time.perf_counter() - begun, usage.ru_maxrss / 1024


def network_alone(model: Path, seconds: int, precision: str) -> float:
    """Images a second of OpenVINO's benchmark_app."""
    program = str(Path(sys.executable).with_name("benchmark_app"))
    command = [program, "-m", str(model), "-d", "CPU", "-t", str(seconds)]
    command += ["-hint", "throughput", "-infer_precision", precision]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(re.findall(r"Throughput:\s*([0-9.]+) FPS", output)[-1])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--yolo")
    parser.add_argument("--alone", type=int, default=10)
    options = parser.parse_args()
    folder = options.folder.resolve()
    count, image = len(list(folder.glob("*.jpg"))), min(folder.glob("*.jpg"))
    program, model = str(Path(sys.executable).with_name("detcli")), str(options.model.resolve())
    predict = [program, "predict", "-q", "-m", model, "--device"]
    with tempfile.TemporaryDirectory() as results:
        commands = {
            "detcli": predict + ["cpu"],
            "detcli, openvino": predict + ["openvino"],
            "detcli, openvino --half": predict + ["openvino", "--half"],
            "loop, ONNX Runtime": [sys.executable, "-c", LOOP, "onnxruntime", model],
            "loop, OpenVINO, f32": [sys.executable, "-c", LOOP, "f32", model],
            "loop, OpenVINO, bf16": [sys.executable, "-c", LOOP, "bf16", model],
        }
        if options.yolo:
            settings = [f"model={model}", "device=cpu", "verbose=False", f"project={results}"]
            commands["yolo predict"] = [options.yolo, "predict"] + settings + ["save=False"]

        def command(name: str, source: Path) -> list[str]:
            is_yolo = name == "yolo predict"
            return commands[name] + [f"source={source}" if is_yolo else str(source)]

        for name in commands:
            run(command(name, image))  # fills caches
        rounds_of: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        for _ in range(options.rounds):
            for name in commands:
                start_s, _ = run(command(name, image))
                folder_s, peak_mb = run(command(name, folder))
                rate = (count - 1) / (folder_s - start_s)
                rounds_of[name].append((rate, start_s, peak_mb))
    print("| | images/s | start | memory |\n| --- | --- | --- | --- |")
    for name, rounds in rounds_of.items():
        rate, start_s, peak_mb = np.median(rounds, axis=0)
        print(f"| {name} | {rate:.1f} | {start_s:.2f} s | {peak_mb:.0f} MB |")
    for precision in ("f32", "bf16"):
        rate = network_alone(options.model, options.alone, precision)
        print(f"| benchmark_app, network alone, {precision} | {rate:.1f} | | |")


if __name__ == "__main__":
    main()
