"""`detcli doctor` as a command, with libraries that are really broken."""

import getpass
import importlib.util
import json
import os
import re
import sys
from dataclasses import replace

import forked
import optional
import pytest
import thinning
from folders import files_in, names_in
from json_lines import column_of
from report_schemas import validator
from rich.console import Console

from detcli.backend.nvidia import GpuFacts
from detcli.commands.doctor import examine, render
from detcli.commands.doctor.cache import Cache, CachePart
from detcli.commands.doctor.examine import DoctorDefault, DoctorDevice, DoctorReport, Nvidia
from detcli.commands.doctor.installation import DoctorProblem

pytestmark = pytest.mark.slow


def report_of(completed, code=0):
    """The report of a run, its devices by name."""
    assert "Traceback" not in completed.stderr
    assert completed.returncode == code, completed.stderr
    report = json.loads(completed.stdout)
    validator("doctor").validate(report)
    device_by_name = {device["name"]: device for device in report["devices"]}
    return report | {"devices": device_by_name}


@pytest.fixture(scope="module")
def run_in_a_pipe(tmp_path_factory):
    """A run whose output goes to a pipe, and the cache folder that it could have made."""
    cache = tmp_path_factory.mktemp("doctor") / "cache"
    device = "openvino" if importlib.util.find_spec("openvino") else "cpu"
    environment = {**os.environ, "DETCLI_CACHE_DIR": str(cache)}
    return forked.run(["doctor", "--device", device], env=environment), cache


def test_a_pipe_gets_json(run_in_a_pipe):
    completed, _ = run_in_a_pipe
    assert completed.returncode == 0
    assert completed.stderr == ""
    assert json.loads(completed.stdout)["detcli"]


def test_the_cpu_is_usable(run_in_a_pipe):
    completed, _ = run_in_a_pipe
    report = json.loads(completed.stdout)
    assert report["devices"][0]["name"] == "cpu"
    assert report["devices"][0]["usable"] is True


def test_nothing_is_written(run_in_a_pipe):
    completed, cache = run_in_a_pipe
    assert json.loads(completed.stdout)["cache"]["cleared_bytes"] is None
    assert not cache.exists()


@optional.needs("openvino")
def test_a_working_openvino_is_usable(run_in_a_pipe):
    completed, _ = run_in_a_pipe
    device = report_of(completed)["devices"]["openvino:CPU"]
    assert device["usable"] is True
    assert device["problems"] == []


@pytest.mark.usefixtures("doctor_asks_once")
@pytest.mark.parametrize(
    ("model", "shown_model"),
    [
        ("~/mine/best.onnx", "~/mine/best.onnx"),
        ("https://user:secret@host/x.onnx", "https://host/x.onnx"),
        ("user:secret@host/x.onnx", "***@host/x.onnx"),
    ],
)
def test_defaults_are_shown_with_their_origin(invoke, tmp_path, monkeypatch, model, shown_model):
    path = tmp_path / "detcli.toml"
    table = f'[tuned.{"5" * 64}."Some GPU"]\none = {{ half = true, model = "{tmp_path}/8.onnx" }}\n'
    path.write_text(f'device = "cpu"\nsave = "~/out"\nmodel = "codes"\n{table}')
    monkeypatch.setenv("DETCLI_CONFIG", str(path))
    monkeypatch.setenv("DETCLI_MODEL", model)
    monkeypatch.delenv("DETCLI_DEVICE")
    monkeypatch.setenv("HOME", str(tmp_path))
    report = report_of(invoke("doctor"))
    assert [tuple(default.values()) for default in report["defaults"]] == [
        ("model", shown_model, "DETCLI_MODEL"),
        ("device", "cpu", "~/detcli.toml"),
        ("save", "~/out", "~/detcli.toml"),
        ("tuned 555555555555 one", "half True, model ~/8.onnx", "~/detcli.toml, on Some GPU"),
    ]
    path.write_text("[tuned]\na = 3")
    assert column_of(report_of(invoke("doctor"))["defaults"], "option") == [
        "model",
        "device",
    ]


@pytest.mark.usefixtures("doctor_asks_once")
@pytest.mark.parametrize("value", ["3", '"abc"', "[1]", "1979-05-27"])
@pytest.mark.parametrize("keys", ["a", "a.b", "a.b.one"])
def test_other_values_in_the_place_of_tables_of_tune_are_left_out(
    invoke, tmp_path, monkeypatch, keys, value
):
    path = tmp_path / "detcli.toml"
    path.write_text(f"[tuned]\n{keys} = {value}\nc.d.one.batch = 4")
    monkeypatch.setenv("DETCLI_CONFIG", str(path))
    options = column_of(report_of(invoke("doctor"))["defaults"], "option")
    tuned_options = [option for option in options if option.startswith("tuned")]
    assert tuned_options == ["tuned c one"]


@pytest.mark.usefixtures("doctor_asks_once")
def test_defaults_that_cannot_be_used_are_a_problem(invoke, tmp_path, monkeypatch):
    (tmp_path / "detcli.toml").write_text("modle = 3")
    monkeypatch.setenv("DETCLI_CONFIG", str(tmp_path / "detcli.toml"))
    report = report_of(invoke("doctor"), 6)
    assert report["defaults"] == []
    (problem,) = report["problems"]
    assert problem["reason"].endswith("detcli.toml: predict has no option 'modle'")
    assert problem["advice"].startswith("did you mean model?")


BROKEN = [
    # The other libraries load NumPy, and do not load either.
    ("numpy.py", "raise ImportError('libodd.so.1: file too short')",
     "does not load: libodd.so.1: file too short", "pip "),
    pytest.param("cv2.py", "import os\nos.kill(os.getpid(), 11)",
                 "does not load: crashed with SIGSEGV", "pip ",
                 marks=pytest.mark.skipif(sys.platform == "win32", reason="no such signal")),
    # The empty folder of a removed package can be imported, but has no attributes.
    ("onnxruntime/__init__.py", "", "has no attribute",
     "pip install --force-reinstall --no-deps "),
]  # fmt: skip
"""A file that hides a library, its code, what the problem says, and how its command begins."""


@pytest.mark.parametrize(
    ("file", "code", "loader_message", "command"),
    thinning.thin("libraries that do not load", BROKEN, count=1),
)
def test_a_library_that_does_not_load_is_reported_once(
    detcli, tmp_path, file, code, loader_message, command
):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    report = report_of(detcli("doctor", env=environment, timeout=300), 6)
    (problem,) = report["problems"]
    assert loader_message in problem["reason"]
    assert problem["command"].startswith(command)
    assert not report["devices"]["cpu"]["usable"]


@pytest.mark.skipif(sys.platform == "win32", reason="HOME is another variable there")
def test_no_personal_names_and_no_values_of_variables(detcli, tmp_path):
    """Every variable's value and every folder contains a marker."""
    home = tmp_path / "zaphod-home"
    (home / "site").mkdir(parents=True)
    (home / "site/libcudnn.so.9").touch()
    names = "USER LOGNAME USERNAME CUDA_HOME MY_TOKEN CUDA_CACHE_PATH DISPLAY HOSTNAME".split()
    marked = {name: f"zaphod-{number}" for number, name in enumerate(names)}
    python_path = [str(home / "site")] + [folder for folder in sys.path if folder]
    folders = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "zaphod-cache"),
        "LD_LIBRARY_PATH": str(home / "site"),
        "PYTHONPATH": os.pathsep.join(python_path),
        "TMPDIR": str(home),
    }
    environment = {**os.environ, **marked, **folders}
    del environment["DETCLI_CACHE_DIR"]
    completed = detcli("doctor", "--format", "json", env=environment, cwd=home, timeout=300)
    assert completed.returncode == 0, completed.stderr
    assert "zaphod" not in completed.stdout
    assert str(tmp_path) not in completed.stdout
    assert "$XDG_CACHE_HOME/detcli" in completed.stdout
    assert "MY_TOKEN" not in completed.stdout
    if len(getpass.getuser()) > len("root"):
        assert getpass.getuser() not in completed.stdout
    assert names_in(home) == ["site"]  # nothing was written


@pytest.mark.parametrize("device", ["gpu", "auto", "cpu:1", "cuda:", "cuda:x", ""])
def test_an_unknown_device(invoke, device):
    completed = invoke("doctor", "--device", device)
    assert completed.returncode == 2
    assert completed.stdout == ""
    assert re.search(r"unknown device|cannot be required", completed.stderr)


def test_the_required_device_is_found_by_its_ordinal(invoke, monkeypatch):
    usable = DoctorDevice("cuda:0", "C", usable=True, problems=())
    problem = DoctorProblem("there is no GPU number 1, only 1", advice="x")
    unusable = DoctorDevice("cuda:1", "C", usable=False, problems=(problem,))
    report = replace(REPORT, devices=(usable, unusable), problems=())
    monkeypatch.setattr(examine, "examine", lambda *_: report)
    assert invoke("doctor", "--device", "cuda:0").returncode == 0
    completed = invoke("doctor", "--device", "cuda:1")
    assert completed.returncode == 5
    assert json.loads(completed.stdout)["problems"] == []
    assert "cuda:1 cannot be used: there is no GPU number 1" in completed.stderr


@pytest.mark.usefixtures("doctor_asks_once")
def test_clearing_the_cache(invoke, cache, make_model, make_image):
    invoke("predict", make_image("a.png"), "-m", make_model(tail="authors"), "--device", "cpu")
    size = sum(path.stat().st_size for path in files_in(cache))
    assert size > 0
    (cache / "prepared/diploma.txt").write_text("three years")
    report = json.loads(invoke("doctor", "--clear-cache").stdout)
    assert report["cache"]["cleared_bytes"] == size
    assert set(column_of(report["cache"]["parts"], "files")) == {0}
    assert files_in(cache) == [cache / "prepared/diploma.txt"]


LONG = "pip install " + " ".join(f"'a-package-of-a-long-name-{number}>=1'" for number in range(9))
NO_GPU = DoctorProblem("this machine has no NVIDIA GPU", None, "use --device cpu")
MISSING = DoctorProblem("missing: libcudnn.so.9 (cuDNN)", LONG)
OWN = DoctorProblem("missing: \x1b[2Jlibnvinfer.so.10", 'pip install "detcli[cuda]"', "half")
DISTRUSTED = DoctorProblem("the cache, since others can write", "chmod -R go-w ~/x", "then")


REPORT = DoctorReport(
    detcli="0.1.0",
    python="3.11.7 (CPython)",
    nvidia=Nvidia("580.65", "13.0", None, (GpuFacts("NVIDIA H200", "9.0", 150_000_000_000),)),
    devices=(
        DoctorDevice("cpu", "CPUExecutionProvider", usable=True, problems=()),
        DoctorDevice("cuda", "C", usable=False, problems=(MISSING,)),
        DoctorDevice("tensorrt", "T", usable=False, problems=(MISSING, OWN)),
        DoctorDevice("openvino", None, usable=False, problems=(OWN,)),
    ),
    problems=(DoctorProblem("numpy does not load", "pip install numpy"),),
    cache=Cache("~/x", False, (CachePart("prepared", 2, 2048),), 4096, (DISTRUSTED,)),  # noqa: FBT003
    defaults=(DoctorDefault("conf", "0.4", "a\nb"),),
)


def test_without_a_gpu_nothing_is_to_be_installed_for_it():
    devices = (
        DoctorDevice("cuda", "C", usable=False, problems=(NO_GPU, MISSING)),
        DoctorDevice("tensorrt", "T", usable=False, problems=(NO_GPU, MISSING, OWN)),
    )
    console = Console(width=60)
    with console.capture() as text:
        for part in render(replace(REPORT, devices=devices)):
            console.print(part)
    assert "this machine has no NVIDIA GPU" in text.get()
    assert "missing: " not in text.get()


def test_what_could_be_faster_is_a_row_only_if_there_is_something():
    nvidia = replace(REPORT.nvidia, faster="TensorRT is installed")
    texts = []
    for report in (REPORT, replace(REPORT, nvidia=nvidia)):
        console = Console(width=80)
        with console.capture() as text:
            for part in render(report):
                console.print(part)
        texts.append(text.get())
    assert "TensorRT is installed" not in texts[0]
    assert re.search(r"^faster +TensorRT is installed", texts[1], re.MULTILINE)


def test_the_table_of_a_report():
    console = Console(width=60)
    with console.capture() as text:
        for part in render(REPORT):
            console.print(part, soft_wrap=bool(getattr(part, "no_wrap", False)))
    assert [line.rstrip() for line in text.get().splitlines()] == [
        "problem: numpy does not load",
        "    fix: pip install numpy",
        "not used: the cache, since others can write",
        "    fix: chmod -R go-w ~/x",
        "    then",
        "cpu       usable: the test detector ran on it",
        "cuda      not usable",
        "  missing: libcudnn.so.9 (cuDNN)",
        f"    fix: {LONG}",  # on one line at any width, to be copied
        "tensorrt  not usable",
        "  for the same reasons, and:",
        "  missing: \\x1b[2Jlibnvinfer.so.10",
        '    fix: pip install "detcli[cuda]"',
        "    half",
        "openvino  not usable",
        "  for the same reasons",
        "",
        "detcli                       0.1.0",
        "Python                       3.11.7 (CPython)",
        "NVIDIA driver                580.65",
        "it supports CUDA up to       13.0",
        "ONNX Runtime built for CUDA  -",
        "GPU 0                        NVIDIA H200, compute capability",
        "                             9.0, 150.0 GB",
        "cache                        ~/x, not writable",
        "  prepared                   2.0 kB",
        "  cleared                    4.1 kB",
        "default conf                 0.4, a\\nb",
    ]
