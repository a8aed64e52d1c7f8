"""What the `detcli` command loads when it starts, and what it does where nobody can read it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest

pytestmark = pytest.mark.slow

HEAVY = {"cv2", "numpy", "onnx", "onnxruntime", "rich", "platformdirs", "huggingface_hub", "httpx2"}
UNUSUAL = {"obstore", "botocore", "urllib.request", "zxingcpp", "PIL"}


def words_on_stderr(code, environment):
    """Run Python code in a process, which has to succeed, and return what it prints as errors."""
    finished = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stderr.split()


def imported_by(*arguments, environment=None):
    """Modules that a run of the command line loads."""
    # `main` ends by os._exit while a thread still runs, by the interpreter's end otherwise.
    code = (
        "import sys, atexit, os\n"
        "end = os._exit\n"
        "show = lambda: print(*sys.modules, file=sys.stderr, flush=True)\n"
        "os._exit = lambda code: (show(), end(code))\n"
        "atexit.register(show)\n"
        f"sys.argv = ['detcli', *{forked.words_of(arguments)!r}]\n"
        "from detcli.__main__ import main\n"
        "main()\n"
    )
    return set(words_on_stderr(code, environment))


@pytest.mark.parametrize(
    ("line", "unwanted"),
    [
        ("predict -h", HEAVY | UNUSUAL),
        ("eval -h", HEAVY | UNUSUAL),
        ("models -h", HEAVY | UNUSUAL),
        ("schema -h", HEAVY | UNUSUAL),
        ("doctor -h", HEAVY | UNUSUAL),
        ("bench -h", HEAVY | UNUSUAL),
        ("promise -h", HEAVY | UNUSUAL),
        ("promise deal -h", HEAVY | UNUSUAL),
        ("--help", HEAVY | UNUSUAL),
        ("--version", HEAVY | UNUSUAL),
        ("schema", HEAVY | UNUSUAL),
        ("models list", {"cv2", "onnx", "onnxruntime", "huggingface_hub", "httpx2"}),
    ],
)  # fmt: skip
def test_what_needs_it_not_loads_nothing_heavy(line, unwanted):
    assert imported_by(line.split()) & unwanted == set()


@pytest.mark.parametrize("command", ["count", "sort"])
def test_commands_over_records_load_neither_opencv_nor_a_runtime(command, tmp_path):
    path = tmp_path / "boxes.jsonl"
    path.write_text("")
    options = {"count": [], "sort": ["--by", "animal", "-o", tmp_path / "out"]}
    unwanted = {"cv2", "onnx", "onnxruntime", "rich", "platformdirs"} | set(UNUSUAL)
    assert imported_by(command, path, options[command]) & unwanted == set()


def test_a_command_loads_no_other():
    loaded = imported_by("schema")
    assert "detcli.commands.schema" in loaded
    for name in loaded:
        assert not re.match(r"detcli\.commands\.(?!schema)", name)


def test_a_warm_start_loads_neither_onnx_nor_rich(cache, make_model, make_image):
    assert not cache.exists()
    arguments = ["predict", "-q", make_image("a.png"), "-m", make_model(tail="authors")]
    assert "onnx" in imported_by(arguments)
    unwanted = {"onnx", "rich", "platformdirs", "huggingface_hub", "csv", "pydantic"} | set(UNUSUAL)
    assert imported_by(arguments) & unwanted == set()


def test_completing_classes_loads_neither_onnx_nor_its_runtime(cache, make_model):
    environment = {
        **os.environ,
        "_DETCLI_COMPLETE": "complete_bash",
        "COMP_WORDS": f"detcli\npredict\n-m\n{make_model(tail='authors')}\n--classes\nr",
        "COMP_CWORD": "5",
    }
    assert "onnx" in imported_by(environment=environment)
    assert cache.exists()
    assert imported_by(environment=environment) & {"onnx", "onnxruntime", "cv2"} == set()


def test_a_fetched_model_loads_no_more_and_a_list_asks_no_hub(hub, make_model, make_image):
    hub.add("yolov10n", make_model(tail="authors").read_bytes())
    arguments = ["predict", "-q", make_image("a.png")]
    assert "huggingface_hub" in imported_by(arguments)
    heavy = {"onnx", "rich", "platformdirs", "huggingface_hub", "httpx2"}
    assert imported_by(arguments) & heavy == set()


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, detcli; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert set(finished.stdout.decode().split()) & HEAVY == set()


COMMANDS = ["--help", "-V", "eval --help", "models -h", "models path codes", "models list"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("line", COMMANDS + ["--show-completion"])
def test_help_and_paths_that_cannot_be_written_are_errors(line):
    """But a reader may go away."""
    command = [sys.executable, "-m", "detcli"] + line.split()
    for redirection, code, reason in (
        (">/dev/full", 1, "detcli: .*No space left"),
        (">&-", 1, "detcli: .*output is closed") if line in COMMANDS else (">&-", 0, "$"),
        ("| true", 0, "$"),
    ):
        script = f'set -o pipefail; "$@" {redirection}'
        done = subprocess.run(
            ["bash", "-c", script, "bash"] + command,
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "", "SHELL": "bash"},
        )
        assert done.returncode == code
        assert done.stdout == ""
        assert re.match(reason, done.stderr)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no list of threads")
@pytest.mark.parametrize(
    ("user_variables", "threads"),
    [({}, 1), ({"OPENBLAS_NUM_THREADS": "2"}, 2), ({"OMP_NUM_THREADS": "2"}, 2)],
)
def test_the_matrices_of_numpy_get_no_threads_unless_they_are_asked_for(user_variables, threads):
    if threads > len(os.sched_getaffinity(0)):
        pytest.skip("OpenBLAS starts no more threads than there are cores")
    variables = {**os.environ, **user_variables}
    for name in {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"} - user_variables.keys():
        variables.pop(name, None)
    code = (
        "import os, sys\n"
        "sys.argv = ['detcli', '--version']\n"
        "from detcli.__main__ import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    import numpy\n"
        "    print(len(os.listdir('/proc/self/task')), file=sys.stderr)\n"
    )
    assert words_on_stderr(code, variables) == [str(threads)]
