"""Asks anything that may crash or hang in a separate process: a crash is a finding too.

Also the functions that run there, and `scrub`, which keeps personal names out of what libraries
say: their messages are full of paths, and a path often begins with the user's name.
"""

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcli.commands.doctor.machine import RELEVANT, user_names

if TYPE_CHECKING:
    from detcli.detections import Detections

TIMEOUT_S = 120
NO_PYTHON = "Python does not start"

# The last line it prints is a JSON object; whatever libraries print before that is ignored.
FRAME = """
import contextlib, json, sys
sys.path[:] = {path!r}
with contextlib.suppress(ImportError):  # not on Windows
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no core file
try:
    answer = {{"value": {expression}}}
except BaseException as error:
    while error.__cause__ is not None:
        error = error.__cause__
    answer = {{"error": str(error) or type(error).__name__}}
sys.stdout.write("\\n" + json.dumps(answer) + "\\n")
sys.stdout.flush()
"""

ABSOLUTE = re.compile(r"""(?:\b[A-Za-z]:|(?<![\w.~$\\/]))[\\/](?:[^\s\\/:'"`,;()]+[\\/])+""")
MIN_VALUE = 8  # characters of a variable's value; shorter ones are common words

# The test detector: for each cell of 2x2 pixels one constant box, and as scores of two classes the
# red and the green of its first pixel.
DETECTOR = """
<ir_version: 8, opset_import: ["": 17], metadata_props: ["names": "['red', 'green']"]>
trial (float[1, 3, 32, 32] images) => (float[1, 6, 256] head)
<
  float[6, 3, 1, 1] weights = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0},
  float[6] biases = {4, 4, 12, 20, 0, 0},
  int64[3] shape = {1, 6, 256}
> {
  cells = Conv <strides = [2, 2]> (images, weights, biases)
  head = Reshape (cells, shape)
}
"""
EXPECTED = {"red": [1.0, 4.0, 4.0, 12.0, 20.0], "green": [0.8, 4.0, 4.0, 12.0, 20.0]}
"""Score and box (x1, y1, x2, y2) of each class in the test picture."""
TOLERANCE = 0.01  # TensorRT rounds more than the others


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of a separate process.

    Attributes:
        value: The answer, as far as JSON can hold it.
        error: Why it did not answer; None if it did.
    """

    value: Any = None
    error: str | None = None


def load(module: str, attribute: str) -> Outcome:
    """Import a module and get an attribute, which a left-over empty folder does not have."""
    return evaluate(f"[__import__({module!r}).{attribute}, None][1]")


def ask(function: str, *arguments: str) -> Outcome:
    """Call one of this module's functions: driver_facts, runtime_facts, display_fault, trial."""
    return evaluate(f"__import__({__name__!r}, fromlist=['it']).{function}(*{arguments!r})")


def evaluate(expression: str) -> Outcome:
    """Evaluate a Python expression, whose value JSON can hold, with this process's module path."""
    code = FRAME.format(path=sys.path, expression=expression)
    try:
        done = subprocess.run(  # noqa: S603 - this very Python, and constants
            [sys.executable, "-P", "-c", code],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            # The null device is not a folder, so nothing is cached.
            env={"ORT_DISABLE_TELEMETRY": "1", **os.environ, "DETCLI_CACHE_DIR": os.devnull},
        )
    except subprocess.TimeoutExpired:
        return Outcome(error=f"no answer within {TIMEOUT_S} s")
    except OSError as error:
        return Outcome(error=f"{NO_PYTHON}: {error.strerror}")
    if done.returncode < 0:
        return Outcome(error=f"crashed with {_signal_name(-done.returncode)}")
    try:
        answer = json.loads(done.stdout.rstrip("\n").rpartition("\n")[2])
    except ValueError:
        last_line = done.stderr.strip().rpartition("\n")[2]
        return Outcome(error=scrub(last_line) or f"exited with code {done.returncode}")
    if "error" in answer:
        return Outcome(error=scrub(answer["error"].strip().partition("\n")[0]))
    return Outcome(value=answer["value"])


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name}: it was built for a newer CPU" if name == "SIGILL" else name


def scrub(text: str) -> str:
    """A library's message without folders, names of user and host, and values of variables."""
    for folder in _known_folders():
        text = text.replace(folder + os.sep, f"{os.sep}_{os.sep}")  # a path without blanks
    text = ABSOLUTE.sub("", text)
    for name, value in os.environ.items():
        if len(value) >= MIN_VALUE or (value and name in {"DISPLAY", "WAYLAND_DISPLAY"}):
            text = text.replace(value, f"${name}" if RELEVANT.fullmatch(name) else "...")
    for user in user_names():
        text = re.sub(rf"\b{re.escape(user)}\b", "USER", text)
    if host := platform.node():
        text = re.sub(rf"\b{re.escape(host)}\b", "HOST", text)
    return text.strip()


def _known_folders() -> list[str]:
    """Folders whose names may contain blanks, which ABSOLUTE would not match; longest first."""
    folders = {*sys.path, sys.prefix}
    with contextlib.suppress(OSError, RuntimeError):
        folders |= {str(Path.home()), str(Path.cwd())}
    for value in os.environ.values():
        folders.update(value.split(os.pathsep))
    absolute = {folder.rstrip("/\\") for folder in folders if Path(folder).is_absolute()}
    return sorted(absolute - {""}, key=len, reverse=True)


def driver_facts() -> dict[str, Any]:
    """What NVIDIA's driver reports: the fields of DriverFacts."""
    from detcli.backend.nvidia import ask_driver

    facts = ask_driver()
    return asdict(replace(facts, load_error=facts.load_error and scrub(facts.load_error)))


def runtime_facts() -> dict[str, Any]:
    """What ONNX Runtime and the loader report: the fields of RuntimeFacts."""
    from detcli.backend.nvidia import cuda_command
    from detcli.backend.runtime import libraries, onnxruntime
    from detcli.backend.runtime.libraries import CUDA, TENSORRT, unloadable_libraries

    providers = onnxruntime.get_available_providers()
    return {
        "version": onnxruntime.__version__,
        "cuda": libraries.runtime_cuda(),
        "providers": providers,
        "cuda_command": cuda_command(),
        "failures": {
            provider: [
                asdict(replace(failure, reason=scrub(failure.reason)))
                for failure in unloadable_libraries(provider)
            ]
            for provider in (CUDA, TENSORRT)
            if provider in providers
        },
    }


def display_fault() -> str | None:
    """Why `predict --show` cannot open a window; None if a test window opened."""
    from detcli.errors import DetcliError
    from detcli.sink.window import check_display

    try:
        check_display()
    except DetcliError as error:
        return scrub(str(error).removeprefix("cannot show pictures: "))
    return None


def trial(device: str) -> dict[str, str] | None:
    """Run the test detector on a device: the only proof that a device is usable.

    It has what a real detector has: a convolution, which needs cuDNN on a GPU; a head, which needs
    detcli's kernels there; and boxes, which are known beforehand.

    Returns:
        None if the expected boxes were found, else what went wrong: "reason" and "hint".
    """
    import numpy as np

    from detcli.errors import DetcliError

    try:
        found = _detect(device)
    except DetcliError as error:
        return {"reason": scrub(str(error)), "hint": error.hint}
    rows = np.column_stack([found.score, found.xyxy])
    same_names = found.class_name == [*EXPECTED]
    if same_names and np.allclose(rows, [*EXPECTED.values()], rtol=0, atol=TOLERANCE):
        return None
    said = [*zip(found.class_name, rows.round(4).tolist(), strict=True)]
    reason = f"the test detector gave wrong boxes: {said} instead of {[*EXPECTED.items()]}"
    return {"reason": reason, "hint": "report this, and use --device cpu"}


def _detect(device: str) -> "Detections":
    """Run the test detector on a grey picture with a red and a green cell."""
    import numpy as np
    import onnx.parser

    from detcli.backend import open_backend
    from detcli.backend.postprocess import SelectionOptions
    from detcli.geometry import Letterbox
    from detcli.model.contract import BoxFormat
    from detcli.model.prepared import PreparedModel
    from detcli.model.recognise import recognise

    image = np.full((32, 32, 3), 114, np.uint8)
    image[6:8, 10:12] = 0, 0, 255  # BGR
    image[18:20, 2:4] = 0, 204, 0
    model = onnx.parser.parse_model(DETECTOR)
    contract = recognise(model, "trial", BoxFormat.XYXY)
    backend = open_backend(device, PreparedModel("trial", contract, model.SerializeToString()))
    try:
        letterboxes = [Letterbox.fit((32, 32), (32, 32))]
        head = backend.infer(backend.prepare([image], letterboxes))
        options = SelectionOptions(0.5, 300, None, None)
        (found,) = backend.select(head, letterboxes, options)()
        return found
    finally:
        backend.close()
