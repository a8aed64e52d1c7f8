"""The examination: devices tried, each in a process of its own; and the defaults.

Whatever may crash or hang is asked in a separate process, where that is a finding too. Nothing here
names a person: libraries' messages are full of paths, which often begin with the user's name.
"""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from detcli import __version__
from detcli.backend.nvidia import GpuFacts, ask_driver, driver_version
from detcli.cli.defaults import TUNED, defaults_file, read_defaults
from detcli.cli.report import report_field
from detcli.commands.doctor import installation
from detcli.commands.doctor.cache import Cache, describe_cache
from detcli.commands.doctor.installation import CUDA, DoctorProblem
from detcli.commands.doctor.scrub import public_value, scrub, shorten
from detcli.config.config import Config
from detcli.config.device import PROVIDERS, Device, DeviceKind, has_openvino
from detcli.config.option import Option, options_of
from detcli.core import frozen
from detcli.core.errors import DetcliError, UsageError
from detcli.core.packages import explain, find_mixture, python_executable
from detcli.core.text import public_text

if TYPE_CHECKING:
    from detcli.backend.libraries import Unloadable
    from detcli.data.detections import Detections
    from detcli.data.geometry import Pixels
    from detcli.model.prepared import PreparedModel

Problems = tuple[DoctorProblem, ...]

OPENVINO_EXTRA = 'pip install "detcli[openvino]"'

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
TEST_SIZE = (32, 32)
"""Height and width of the test image, and of the detector's input."""

EXPECTED = {"red": [1.0, 4.0, 4.0, 12.0, 20.0], "green": [0.8, 4.0, 4.0, 12.0, 20.0]}
"""Score and box (x1, y1, x2, y2) of each class in the test image; the best score comes first."""

TOLERANCE = 0.01  # TensorRT rounds more than the others


@frozen
class DoctorDevice:
    """A value of `--device`, with the ordinal or OpenVINO's device if one was asked for."""

    name: str
    provider: str | None  # ONNX Runtime's; None for OpenVINO, which runs by itself
    usable: bool  # whether the test detector ran on it and gave the right answer
    problems: tuple[DoctorProblem, ...]  # in the order in which to solve them


@frozen
class Nvidia:
    """NVIDIA's driver, and the GPUs that it lists, in CUDA's order; None is unknown."""

    driver: str | None = report_field("NVIDIA driver")
    driver_cuda: str | None = report_field("it supports CUDA up to")
    runtime_cuda: str | None = report_field("ONNX Runtime built for CUDA")
    gpus: tuple[GpuFacts, ...] = ()
    faster: str = ""  # what could be faster on the first GPU than --device auto


@frozen
class DoctorDefault:
    """An option's value where it is left out, and the variable or file that sets it."""

    option: str
    value: str
    origin: str


@frozen
class DoctorReport:
    """Everything that `detcli doctor` found."""

    devices: tuple[DoctorDevice, ...]
    problems: tuple[DoctorProblem, ...]  # of every device
    cache: Cache
    defaults: tuple[DoctorDefault, ...]
    detcli: str = report_field("detcli")
    python: str = report_field("Python")
    nvidia: Nvidia = report_field()


@frozen
class Outcome:
    """The answer of a separate process, or why there is none."""

    value: Any = None
    error: str | None = None


def examine(device: Device | None = None, cleared_bytes: int | None = None) -> DoctorReport:
    """Try the test detector on each kind of device, and describe the installation and the cache.

    Nothing is changed.

    Args:
        device: The device to report with its ordinal, as in "cuda:1"; None for the first of each.
        cleared_bytes: What was just removed from the cache, for the report.
    """
    defaults = describe_defaults()
    devices = _devices_to_try(device)
    with ThreadPoolExecutor() as pool:
        nvidia_answer = pool.submit(ask, "describe_nvidia")
        trial_answers = [pool.submit(ask, "trial", str(tried)) for tried in devices]
        trials = [answer.result() for answer in trial_answers]
    problems_of_devices = [trial_problems(trial) for trial in trials]
    cpu_works = not problems_of_devices[0]  # the CPU is the first device
    if not cpu_works:
        # Then something is broken that every device needs, and is the reason for all of them.
        problems_of_all = _explain_failure_of_cpu(trials[0])
        problems_of_devices = [problems_of_all for _ in devices]

    # Problems of the whole installation: two packages of ONNX Runtime that overwrite each other's
    # files, defaults that cannot be read, and what makes even the CPU fail.
    problems: list[DoctorProblem] = []
    mixture = find_mixture()
    if mixture is not None:
        reason, remedy = mixture
        problems.append(installation.problem_of(reason, remedy))
    problems += defaults.problems
    problems += problems_of_devices[0]

    reports = []
    for tried, device_problems in zip(devices, problems_of_devices, strict=True):
        reports.append(
            DoctorDevice(
                name=str(tried),
                provider=PROVIDERS.get(tried.kind),
                usable=not device_problems,
                problems=device_problems,
            )
        )
    return DoctorReport(
        detcli=__version__,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        nvidia=_nvidia_facts(nvidia_answer.result()),
        devices=tuple(reports),
        problems=tuple(dict.fromkeys(problems)),
        cache=describe_cache(cleared_bytes),
        defaults=defaults.values,
    )


def _devices_to_try(requested: Device | None) -> list[Device]:
    """List a device of each kind, the CPU first.

    Args:
        requested: The device to list for its kind; for any other kind, the first device is listed.
    """
    devices = []
    for kind in DeviceKind:
        device = Device(kind)
        if device.is_auto:
            continue
        if requested is not None and requested.kind is kind:
            device = requested
        devices.append(device)
    return devices


def _nvidia_facts(answer: Outcome) -> Nvidia:
    """Make the report on NVIDIA's driver and GPUs from the answer of a separate process.

    The driver may crash the process that asks it. In that case only the driver's version is
    reported, which can be read from files.

    Args:
        answer: The answer of `describe_nvidia`: the fields of `Nvidia`, as in JSON.
    """
    if answer.value is None:
        return Nvidia(driver_version(), driver_cuda=None, runtime_cuda=None)
    fields = dict(answer.value)
    fields["gpus"] = tuple(GpuFacts(**gpu_fields) for gpu_fields in answer.value["gpus"])
    return Nvidia(**fields)


def trial_problems(outcome: Outcome) -> Problems:
    """Read from the answer of `trial` what is wrong with a device; nothing if it is usable."""
    if outcome.error is not None:
        return (DoctorProblem(f"the test detector could not run: {outcome.error}"),)
    return tuple(DoctorProblem(**problem) for problem in outcome.value)


def _explain_failure_of_cpu(cpu_trial: Outcome) -> Problems:
    """Find out why even the CPU cannot run the test detector. All devices then share the cause.

    Usually a library that detcli always needs does not load. So each is imported in a separate
    process, which may crash.

    Args:
        cpu_trial: The answer of `trial` for the CPU, which is reported if all libraries load.
    """
    # If Python itself does not start (see `evaluate`), no library can be tried.
    if cpu_trial.error is not None and cpu_trial.error.startswith(NO_PYTHON):
        return (DoctorProblem(f"nothing could be tested: {cpu_trial.error}"),)

    problems = []
    for module, attribute in installation.REQUIRED.items():
        error = load(module, attribute).error
        if error is None:
            continue
        reason, remedy = explain(module, error)
        problems.append(installation.problem_of(reason, remedy))
        if module == "numpy":
            break  # the other libraries load NumPy, and so fail as well
    return tuple(problems) or trial_problems(cpu_trial)


def load(module: str, attribute: str) -> Outcome:
    """Import a module in a separate process, and get an attribute of it.

    An empty folder that a removed package has left can be imported, but has no attribute.

    Returns:
        An outcome without a value, as JSON could not hold it; with the error if there is one.
    """
    # Evaluates the attribute, and has None as its value.
    return evaluate(f"[__import__({module!r}).{attribute}, None][1]")


def ask(function: str, *arguments: str) -> Outcome:
    """Call one of this module's functions, describe_nvidia or trial, in a separate process."""
    argument_list = json.dumps(arguments)  # plain text, whatever kind of text each of them is
    return evaluate(f"__import__({__name__!r}, fromlist=['it']).{function}(*{argument_list})")


def evaluate(expression: str) -> Outcome:
    """Evaluate a Python expression in a separate process, which may crash or hang.

    Args:
        expression: The expression. JSON must be able to hold its value.

    Returns:
        The value; or the error, such as a crash or no answer within TIMEOUT_S.
    """
    code = FRAME.format(path=sys.path, expression=expression)
    try:
        process = subprocess.run(  # noqa: S603 - this very Python, and constants
            [python_executable("doctor"), "-P", "-c", code],
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
    return _outcome(process)


def _outcome(process: subprocess.CompletedProcess[str]) -> Outcome:
    """Read the answer that a process has printed, or say why there is none.

    Args:
        process: A finished process that ran the code in FRAME. Unless it crashed, the last line of
            its output is the answer as JSON: {"value": ...}, or {"error": TEXT} if the code raised
            an error.
    """
    was_ended_by_signal = process.returncode < 0
    if was_ended_by_signal:
        signal_number = -process.returncode
        reason = f"crashed with {_signal_name(signal_number)}"
        if signal_number == signal.SIGILL:
            reason += ": it was built for a newer CPU"
        return Outcome(error=reason)

    try:
        _, _, last_output_line = process.stdout.rstrip("\n").rpartition("\n")
        answer = json.loads(last_output_line)
    except ValueError:
        _, _, last_error_line = process.stderr.strip().rpartition("\n")
        reason = scrub(last_error_line) or f"exited with code {process.returncode}"
        return Outcome(error=reason)

    if "error" in answer:
        first_line, _, _ = answer["error"].strip().partition("\n")
        return Outcome(error=scrub(first_line))
    return Outcome(value=answer["value"])


def _signal_name(number: int) -> str:
    """Name the signal that has ended a process, such as "SIGSEGV"."""
    for known_signal in signal.Signals:
        if known_signal == number:
            return known_signal.name
    return f"signal {number}"


def describe_nvidia() -> dict[str, Any]:
    """Ask the driver for the fields of `Nvidia`, in a form that JSON can hold."""
    from detcli.backend import libraries

    facts = ask_driver()
    nvidia = Nvidia(
        driver=driver_version(),
        driver_cuda=facts.cuda,
        runtime_cuda=libraries.runtime_cuda(),
        gpus=facts.gpus,
        faster=libraries.faster_with_tensorrt(0),
    )
    return asdict(nvidia)


def trial(device: str) -> list[dict[str, Any]]:
    """Run the test detector on a device: the only proof that a device is usable.

    It has what a real detector has: a convolution, which needs cuDNN on a GPU; a head, which needs
    detcli's kernels there; and boxes, which are known beforehand. If the device lacks a library,
    for example, nothing is run.

    Returns:
        The fields of a `DoctorProblem` for each thing that is wrong; none if the device is usable.
    """
    problems = _what_device_lacks(Device.parse(device))
    if not problems:
        problems = _problems_of_detecting(device)
    return [asdict(problem) for problem in problems]


def _problems_of_detecting(device: str) -> list[DoctorProblem]:
    """Run the test detector on a device, and return the error or the wrong detections, if any."""
    try:
        detections = _detect(device)
    except DetcliError as error:
        return [installation.problem_of(scrub(str(error)), error.hint)]
    return _wrong_detections(detections)


def _wrong_detections(detections: "Detections") -> list[DoctorProblem]:
    """Compare the detections of the test detector with what they should be.

    Returns:
        A problem if the class names or their order differ from those in EXPECTED, or if a
        score or a corner of a box differs by more than TOLERANCE; otherwise none.
    """
    import numpy as np

    names = detections.class_name.tolist()
    expected_names = list(EXPECTED)
    scores_and_boxes = np.column_stack([detections.score, detections.xyxy])  # (detections, 5)
    expected_scores_and_boxes = list(EXPECTED.values())
    # With the same names there are as many rows, so that the values can be compared.
    if names == expected_names and np.allclose(
        scores_and_boxes, expected_scores_and_boxes, rtol=0, atol=TOLERANCE
    ):
        return []

    actual = list(zip(names, scores_and_boxes.round(4).tolist(), strict=True))
    expected = list(EXPECTED.items())
    reason = f"the test detector gave wrong boxes: {actual} instead of {expected}"
    return [DoctorProblem(reason, advice="report this, and use --device cpu")]


def _what_device_lacks(device: Device) -> list[DoctorProblem]:
    """List what a device lacks to run anything, as far as it shows before something runs on it.

    OpenVINO may not be installed; a GPU may lack its driver or libraries.
    """
    if device.kind not in PROVIDERS and not has_openvino():
        return [DoctorProblem("OpenVINO is not installed", OPENVINO_EXTRA)]
    if not device.is_gpu:
        return []
    from detcli.backend import libraries
    from detcli.backend.session import onnxruntime

    driver_facts = ask_driver()
    if driver_facts.load_error:
        driver_facts = replace(driver_facts, load_error=scrub(driver_facts.load_error))
    # TensorRT needs CUDA's libraries, too.
    unloadable_libraries = _unloadable_libraries((CUDA, device.provider))

    problems: list[DoctorProblem] = []
    problem_of_driver = installation.driver_problem(
        driver_facts,
        installation.read_host(),
        version=onnxruntime.__version__,
        cuda=libraries.runtime_cuda(),
    )
    if problem_of_driver is not None:
        problems.append(problem_of_driver)
    problems += installation.provider_problems(
        device.provider, onnxruntime.__version__, unloadable_libraries
    )
    return problems


def _unloadable_libraries(providers: Iterable[str]) -> dict[str, list["Unloadable"]]:
    """List for each execution provider the libraries that it needs and that do not load.

    Providers that ONNX Runtime was not built with are left out.
    """
    from detcli.backend import libraries
    from detcli.backend.session import onnxruntime

    available_providers = onnxruntime.get_available_providers()
    failures_by_provider = {}
    for provider in providers:
        if provider not in available_providers:
            continue
        failures = []
        for failure in libraries.unloadable_libraries(provider):
            # Messages of the loader may contain personal names.
            failures.append(replace(failure, reason=scrub(failure.reason)))
        failures_by_provider[provider] = failures
    return failures_by_provider


def _detect(device: str) -> "Detections":
    """Run the test detector on a device, on its test image.

    Returns:
        The detections, which are EXPECTED if the device computes correctly.
    """
    from detcli.backend import open_backend
    from detcli.backend.postprocess import SelectionOptions
    from detcli.data.geometry import Letterbox

    letterboxes = [Letterbox.fit(TEST_SIZE, TEST_SIZE)]  # the image is not scaled
    options = SelectionOptions(conf=0.5, max_det=300, class_ids=None, nms_iou=None)

    backend = open_backend(device, _test_detector())
    with contextlib.closing(backend):
        batch = backend.prepare([_test_image()], letterboxes)
        head = backend.infer(batch)
        # A device may work asynchronously, so `select` returns a function that waits for it.
        wait_for_detections = backend.select(head, letterboxes, options)
        [detections] = wait_for_detections()
        return detections


def _test_detector() -> "PreparedModel":
    """Prepare the test detector, as it is written in DETECTOR."""
    import onnx.parser

    from detcli.config.values import BoxFormat
    from detcli.model.prepared import PreparedModel, StoredGraph
    from detcli.model.recognise import read_graph

    model = onnx.parser.parse_model(DETECTOR)
    contract = read_graph(model, "trial", BoxFormat.XYXY).contract
    graph = StoredGraph.of(model.SerializeToString())
    return PreparedModel("trial", contract, graph)


def _test_image() -> "Pixels":
    """Draw the image in which the test detector detects EXPECTED: grey with two coloured cells.

    Returns:
        `(32, 32, 3)`, uint8, with the channels in the order BGR. A cell has 2x2 pixels.
    """
    import numpy as np

    image = np.full((*TEST_SIZE, 3), 114, np.uint8)  # the grey of padding
    image[6:8, 10:12] = 0, 0, 255  # a red cell, with a score of 255 / 255 = 1 for "red"
    image[18:20, 2:4] = 0, 204, 0  # a green cell, with a score of 204 / 255 = 0.8 for "green"
    return image


class Defaults(NamedTuple):
    """The values that options have where they are left out."""

    values: tuple[DoctorDefault, ...]
    problems: Problems  # with the file that sets them


def describe_defaults() -> Defaults:
    """List the values of options that are not typed, and where each value comes from.

    These are the options that several commands share, and those in the file detcli.toml. If the
    file cannot be read, the list is empty and the problem is reported.
    """
    try:
        entries = read_defaults()
    except UsageError as error:
        problem = DoctorProblem(public_text(str(error)), advice=error.hint)
        return Defaults((), (problem,))

    # Without a home folder there is no file. Then `entries` is empty, and no value needs a title.
    file_title = ""
    path = defaults_file()
    if path is not None:
        file_title = shorten(path)

    defaults = []
    for name, option in options_of(Config).items():
        if option.shared or name in entries:
            defaults.append(_default_of(name, option, entries, file_title))
    defaults.extend(_tuned_defaults(entries.get(TUNED, {}), file_title))
    return Defaults(tuple(defaults), ())


def _default_of(
    name: str, option: Option, entries: Mapping[str, Any], file_title: str
) -> DoctorDefault:
    """Describe the default of an option: the variable comes before the file.

    Args:
        name: The name of the option.
        option: The option.
        entries: What the file of defaults sets, by the names of options.
        file_title: The name of the file in the report.
    """
    variable = os.environ.get(option.variable)
    if variable:
        value: Any = variable
        origin = option.variable
    elif name in entries:
        value = entries[name]
        origin = file_title
    else:
        value = option.default_text
        origin = "built in"
    flag_name = option.flag.removeprefix("--")
    return DoctorDefault(flag_name, public_value(value), origin)


def _tuned_defaults(tuned: Mapping[str, Any], file_title: str) -> Iterator[DoctorDefault]:
    """Yield the settings that `detcli tune` has measured as the fastest and saved.

    Anything that is not a table where one should be is skipped, as predict ignores it as well.

    Args:
        tuned: The settings by the SHA-256 of a model, then by machine, then by the kind of run.
        file_title: The name, in the report, of the file that they are in.
    """
    for model_sha256, tables_by_machine in tuned.items():
        if not isinstance(tables_by_machine, Mapping):
            continue
        title = f"tuned {model_sha256[:12]}"
        for machine, settings_by_kind in tables_by_machine.items():
            if isinstance(settings_by_kind, Mapping):
                origin = f"{file_title}, on {machine}"
                yield from _tuned_on_machine(title, settings_by_kind, origin)


def _tuned_on_machine(
    title: str, settings_by_kind: Mapping[str, Any], origin: str
) -> Iterator[DoctorDefault]:
    """Yield the settings that are the fastest for a model on a machine, for each kind of run.

    Args:
        title: The name of the settings for the model in the report.
        settings_by_kind: The settings, by the kind of run, such as "many" images.
        origin: Where they are written, and for which machine.
    """
    for kind, settings in settings_by_kind.items():
        if not isinstance(settings, Mapping):
            continue
        texts = [f"{option} {public_value(settings[option])}" for option in settings]
        yield DoctorDefault(f"{title} {kind}", ", ".join(texts), origin)
