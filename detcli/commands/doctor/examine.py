"""The examination: devices tried, each in a process of its own; the cache; the defaults.

Whatever may crash or hang is asked in a separate process, where that is a finding too. Nothing here
names a person: libraries' messages are full of paths, which often begin with the user's name.
"""

import contextlib
import getpass
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcli import __version__
from detcli.backend.nvidia import GpuFacts, ask_driver, driver_version
from detcli.cli.defaults import TUNED, defaults_file, read_defaults
from detcli.cli.report import report_field
from detcli.commands.doctor import installation
from detcli.commands.doctor.installation import CUDA, DoctorProblem
from detcli.config.config import Config
from detcli.config.device import PROVIDERS, Device, DeviceKind, has_openvino
from detcli.config.option import options_of
from detcli.core import frozen
from detcli.core.errors import DetcliError, OutputError, UsageError
from detcli.core.packages import explain, find_mixture, own_python
from detcli.core.text import public_name, public_text
from detcli.storage.cache import cache_folder, why_untrusted

if TYPE_CHECKING:
    from detcli.data.detections import Detections

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

CACHE_FOLDERS = ("prepared", "kernels", "tensorrt", "sent", "hub", "tuned")

# Only files that look like detcli's own are counted or removed, because DETCLI_CACHE_DIR may be set
# to a folder that holds other files. files.AtomicFile leaves a ".part" when its process is killed;
# those of 0.1.0 had shorter names. Earlier versions had a folder `sent-HASH` for each model.
CACHED_FILE = re.compile(
    r"prepared/[0-9a-f]{64}[\w-]*\.(contract|graph|openvino)"
    r"|kernels/[0-9a-f]{64}\.cubin"
    r"|(prepared|kernels)/\.(detcli-)?[0-9a-f]{16}\.part(\.\w+)?"
    r"|tensorrt/([0-9a-f]{64}/[^/]+\.(engine|profile|timing|trt)|[^/]+\.timing)"
    r"|tuned/[0-9a-f]{64}/[^/]+\.onnx"
    r"|sent[/-][0-9a-f]{64}/.+|hub/models--[^/]+/.+"
)


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


@frozen
class CachePart:
    """detcli's files in one folder of the cache."""

    name: str
    files: int
    size_bytes: int


@frozen
class Cache:
    """What detcli keeps between runs."""

    folder: str | None  # without personal names; None without a home folder
    writable: bool
    parts: tuple[CachePart, ...]
    cleared_bytes: int | None  # by --clear-cache
    distrusted: tuple[DoctorProblem, ...] = ()  # caches that others can write to


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


def examine(wanted: Device | None = None, cleared_bytes: int | None = None) -> DoctorReport:
    """Look and try, and change nothing.

    Args:
        wanted: The device to report with its ordinal, as in "cuda:1"; None for the first of each.
        cleared_bytes: What was just removed from the cache, for the report.
    """
    defaults, misled = describe_defaults()
    every = (Device(kind) for kind in DeviceKind)
    devices = [
        wanted if wanted and wanted.kind is device.kind else device
        for device in every
        if not device.is_auto
    ]
    with ThreadPoolExecutor() as pool:
        gpu = pool.submit(ask, "describe_nvidia")
        trials = [*pool.map(partial(ask, "trial"), map(str, devices))]
    found = [trial_problems(trial) for trial in trials]
    if found[0]:  # not even the CPU can be used
        found = [_find_broken(trials[0])] * len(found)
    mixture = find_mixture()
    problems = (mixture and installation.problem_of(*mixture), *misled, *found[0])
    nvidia = Nvidia(driver_version(), None, None)
    if (answer := gpu.result().value) is not None:
        nvidia = Nvidia(**answer | {"gpus": tuple(GpuFacts(**one) for one in answer["gpus"])})
    return DoctorReport(
        detcli=__version__,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        nvidia=nvidia,
        devices=tuple(
            DoctorDevice(str(device), PROVIDERS.get(device.kind), not own, own)
            for device, own in zip(devices, found, strict=True)
        ),
        problems=tuple(dict.fromkeys(filter(None, problems))),
        cache=describe_cache(cleared_bytes),
        defaults=defaults,
    )


def trial_problems(outcome: Outcome) -> Problems:
    """What a trial found to be wrong."""
    if outcome.error is not None:
        return (DoctorProblem(f"the test detector could not run: {outcome.error}"),)
    return tuple(DoctorProblem(**problem) for problem in outcome.value)


def _find_broken(trial: Outcome) -> Problems:
    """Why not even the CPU runs the test detector: usually a library that does not load."""
    if trial.error is not None and trial.error.startswith(NO_PYTHON):
        return (DoctorProblem(f"nothing could be tested: {trial.error}"),)
    found = []
    for module, attribute in installation.REQUIRED.items():
        error = load(module, attribute).error
        if error is not None:
            found.append(installation.problem_of(*explain(module, error)))
            if module == "numpy":
                break  # the others load it
    return tuple(found) or trial_problems(trial)


def load(module: str, attribute: str) -> Outcome:
    """Import a module and get an attribute, which a left-over empty folder does not have."""
    return evaluate(f"[__import__({module!r}).{attribute}, None][1]")


def ask(function: str, *arguments: str) -> Outcome:
    """Call one of this module's functions: describe_nvidia, trial."""
    listed = json.dumps(arguments)  # plain text, whatever kind of text each of them is
    return evaluate(f"__import__({__name__!r}, fromlist=['it']).{function}(*{listed})")


def evaluate(expression: str) -> Outcome:
    """Evaluate a Python expression, whose value JSON can hold, with this process's module path."""
    code = FRAME.format(path=sys.path, expression=expression)
    try:
        done = subprocess.run(  # noqa: S603 - this very Python, and constants
            [own_python("doctor"), "-P", "-c", code],
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
        number = -done.returncode
        name = next((one.name for one in signal.Signals if one == number), f"signal {number}")
        reason = ": it was built for a newer CPU" if name == "SIGILL" else ""
        return Outcome(error=f"crashed with {name}{reason}")
    try:
        answer = json.loads(done.stdout.rstrip("\n").rpartition("\n")[2])
    except ValueError:
        last_line = done.stderr.strip().rpartition("\n")[2]
        return Outcome(error=scrub(last_line) or f"exited with code {done.returncode}")
    if "error" in answer:
        return Outcome(error=scrub(answer["error"].strip().partition("\n")[0]))
    return Outcome(value=answer["value"])


def describe_nvidia() -> dict[str, Any]:
    """The fields of Nvidia."""
    from detcli.backend import libraries

    facts = ask_driver()
    return asdict(Nvidia(driver_version(), facts.cuda, libraries.runtime_cuda(), facts.gpus))


def trial(device: str) -> list[dict[str, Any]]:
    """Run the test detector on a device: the only proof that a device is usable.

    It has what a real detector has: a convolution, which needs cuDNN on a GPU; a head, which needs
    detcli's kernels there; and boxes, which are known beforehand.

    Returns:
        The fields of what went wrong, or of what is lacking, without which nothing is run.
    """
    import numpy as np

    problems = _lacking(Device.parse(device))
    if not problems:
        try:
            found = _detect(device)
        except DetcliError as error:
            problems = [installation.problem_of(scrub(str(error)), error.hint)]
        else:
            rows = np.column_stack([found.score, found.xyxy])
            names = found.class_name.tolist()
            right = names == [*EXPECTED]
            if not right or not np.allclose(rows, [*EXPECTED.values()], rtol=0, atol=TOLERANCE):
                said = [*zip(names, rows.round(4).tolist(), strict=True)]
                expected = [*EXPECTED.items()]
                reason = f"the test detector gave wrong boxes: {said} instead of {expected}"
                problems = [DoctorProblem(reason, advice="report this, and use --device cpu")]
    return [asdict(problem) for problem in problems]


def _lacking(device: Device) -> list[DoctorProblem]:
    """What a device lacks to run anything: OpenVINO; or the driver and libraries of a GPU."""
    if device.kind not in PROVIDERS and not has_openvino():
        return [DoctorProblem("OpenVINO is not installed", OPENVINO_EXTRA)]
    if not device.is_gpu:
        return []
    from detcli.backend import libraries
    from detcli.backend.session import onnxruntime

    facts, version, provider = ask_driver(), onnxruntime.__version__, device.provider
    facts = replace(facts, load_error=facts.load_error and scrub(facts.load_error))
    failures = {
        name: [
            replace(failure, reason=scrub(failure.reason))
            for failure in libraries.unloadable_libraries(name)
        ]
        for name in (CUDA, provider)
        if name in onnxruntime.get_available_providers()
    }
    host, cuda = installation.read_host(), libraries.runtime_cuda()
    driver = installation.driver_problem(facts, host, version, cuda)
    lacking = installation.provider_problems(provider, version, failures)
    return [problem for problem in (driver, *lacking) if problem]


def _detect(device: str) -> "Detections":
    """Run the test detector on a grey picture with a red and a green cell."""
    import numpy as np
    import onnx.parser

    from detcli.backend import open_backend
    from detcli.backend.postprocess import SelectionOptions
    from detcli.config.values import BoxFormat
    from detcli.data.geometry import Letterbox
    from detcli.model.file import PreparedModel
    from detcli.model.recognise import read_graph

    image = np.full((32, 32, 3), 114, np.uint8)
    image[6:8, 10:12] = 0, 0, 255  # BGR
    image[18:20, 2:4] = 0, 204, 0
    model = onnx.parser.parse_model(DETECTOR)
    contract = read_graph(model, "trial", BoxFormat.XYXY).contract
    backend = open_backend(device, PreparedModel("trial", contract, model.SerializeToString()))
    with contextlib.closing(backend):
        letterboxes = [Letterbox.fit((32, 32), (32, 32))]
        head = backend.infer(backend.prepare([image], letterboxes))
        options = SelectionOptions(0.5, 300, None, None)
        (found,) = backend.select(head, letterboxes, options)()
        return found


def scrub(text: str) -> str:
    """A library's message without folders, names of user and host, and values of variables."""
    # Folders whose names may contain blanks, which ABSOLUTE would not match; the longest first.
    named = os.pathsep.join(os.environ.values()).split(os.pathsep)
    folders = {*sys.path, sys.prefix, *named}
    with contextlib.suppress(OSError, RuntimeError):
        folders |= {str(Path.home()), str(Path.cwd())}
    absolute = {folder.rstrip("/\\") for folder in folders if Path(folder).is_absolute()}
    for folder in sorted(absolute - {""}, key=len, reverse=True):
        text = text.replace(folder + os.sep, f"{os.sep}_{os.sep}")  # a path without blanks
    text = ABSOLUTE.sub("", text)
    for value in os.environ.values():
        if len(value) >= MIN_VALUE:
            text = text.replace(value, "...")
    for user in _user_names():
        text = re.sub(rf"\b{re.escape(user)}\b", "USER", text)
    if host := platform.node():
        text = re.sub(rf"\b{re.escape(host)}\b", "HOST", text)
    return text.strip()


def shorten(path: Path) -> str:
    """A path with "~" for the home folder and no user names in the rest."""
    with contextlib.suppress(ValueError, RuntimeError):
        return str(Path("~") / path.relative_to(Path.home()))
    users = _user_names()
    return str(Path(*("USER" if part in users else part for part in path.parts)))


def _user_names() -> set[str]:
    """Every name that this machine has for the user."""
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")}
    with contextlib.suppress(OSError, KeyError, ImportError):  # the user ID has no name
        names.add(getpass.getuser())
    with contextlib.suppress(RuntimeError):
        names.add(Path.home().name)
    return {name for name in names if len(name) > 1}  # a letter occurs in any text


def describe_cache(cleared_bytes: int | None = None) -> Cache:
    """Measure the cache; `cleared_bytes` is what was just removed from it, for the report."""
    try:
        folder = cache_folder()
    except OutputError:
        return Cache(None, writable=False, parts=(), cleared_bytes=cleared_bytes)
    found = {name: dict(_cached_files(folder, name)) for name in CACHE_FOLDERS}
    parts = (CachePart(name, len(files), sum(files.values())) for name, files in found.items())
    place = next(filter(os.path.lexists, (folder, *folder.parents)), folder)
    writable = os.access(f"{place}/.", os.W_OK | os.X_OK)  # a file has no "."
    if os.environ.get("DETCLI_CACHE_DIR"):
        title = "$DETCLI_CACHE_DIR"
    elif (base := os.environ.get("XDG_CACHE_HOME")) and folder.is_relative_to(base):
        title = f"$XDG_CACHE_HOME/{folder.relative_to(base).as_posix()}"
    else:
        title = shorten(folder)
    inside = [path for name, files in found.items() for path in (folder / name, *files)]
    unsafe = tuple(_distrusted(folder, inside, title))
    return Cache(title, writable, tuple(parts), cleared_bytes, unsafe)


def _distrusted(folder: Path, inside: list[Path], shown: str) -> Iterator[DoctorProblem]:
    """Why detcli's own cache, and that of fetched models, is not used."""
    from detcli.model.hub import hub_folder, why_folder_untrusted
    from detcli.model.zoo import MODELS

    if reason := next(filter(None, map(why_untrusted, (folder, *inside))), ""):
        yield DoctorProblem(
            f"the cache, since {reason.replace(str(folder), shown)}",
            f"chmod -R go-w {_typed(shown)}",
            "then detcli doctor --clear-cache, since others may have written to it; or set "
            "DETCLI_CACHE_DIR to another folder",
        )
    hub = hub_folder()
    fetched = filter(None, (model.file() for model in MODELS.values()))
    reasons = (why_folder_untrusted(hub, file.folder) for file in fetched)
    if reason := next(filter(None, reasons), ""):
        yield DoctorProblem(
            f"the Hugging Face cache, since {reason.replace(str(hub), shorten(hub))}",
            f"chmod -R go-w {_typed(shorten(hub))}",
            "then detcli models pull NAME, which checks a model, since others may have written to "
            "it; or set HF_HOME to another folder",
        )


def _typed(shown: str) -> str:
    """A folder as a shell takes it, its "~" or variable unquoted."""
    if shown.startswith("$"):
        return f'"{shown}"'
    home = "~/" if shown.startswith("~/") else ""
    return home + shlex.quote(shown.removeprefix(home))


def clear_cached() -> int:
    """Remove everything detcli has cached, and return the number of bytes.

    Raises:
        OutputError: A file could not be removed.
    """
    try:
        folder = cache_folder()
    except OutputError:
        return 0
    freed = 0
    for name in (*CACHE_FOLDERS, *(one.name for one in folder.glob("sent-*"))):
        for path, size in list(_cached_files(folder, name)):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise OutputError(
                    f"cannot remove {path}: {error.strerror}", "check the folder's permissions"
                ) from error
            freed += size
        for place, _, _ in os.walk(folder / name, topdown=False):
            with contextlib.suppress(OSError):  # not empty, or a link
                Path(place).rmdir()
    return freed


def _cached_files(cache: Path, folder: str) -> Iterator[tuple[Path, int]]:
    """Files of a cache folder with their sizes; links are included but never followed."""
    for place, _, names in os.walk(cache / folder):
        for path in (Path(place) / name for name in names):
            if CACHED_FILE.fullmatch(path.relative_to(cache).as_posix()):
                with contextlib.suppress(OSError):  # gone by now, or not accessible
                    yield path, path.lstat().st_size


def describe_defaults() -> tuple[tuple[DoctorDefault, ...], Problems]:
    """The model, the device, and other chosen defaults; and what is wrong with them."""
    try:
        chosen = read_defaults()
    except UsageError as error:
        return (), (DoctorProblem(public_text(str(error)), advice=error.hint),)
    file, found = shorten(Path(str(defaults_file()))), list[DoctorDefault]()

    def public(value: object) -> str:
        text = public_text(public_name(str(value)))
        return shorten(Path(text)) if "/" in text and "://" not in text else text

    for name, option in options_of(Config).items():
        value, origin = option.default_text, "built in"
        if variable := os.environ.get(option.variable):
            value, origin = variable, option.variable
        elif name in chosen:
            value, origin = chosen[name], file
        if option.shared or name in chosen:
            found.append(DoctorDefault(option.flag[2:], public(value), origin))
    with contextlib.suppress(AttributeError):  # somebody changed a table, which predict says
        for digest, machines in chosen.get(TUNED, {}).items():
            for machine, kinds in machines.items():
                for kind, way in kinds.items():
                    name, origin = f"tuned {digest[:12]} {kind}", f"{file}, on {machine}"
                    text = ", ".join(f"{option} {public(way[option])}" for option in way)
                    found.append(DoctorDefault(name, text, origin))
    return tuple(found), ()
