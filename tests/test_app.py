"""The `detcli` command as a whole: help, version, start-up, unexpected errors."""

import json
import subprocess
import sys

import jsonschema
import pytest
from typer.testing import CliRunner

import detcli as package
from detcli import app as app_module

HEAVY = {"cv2", "numpy", "onnx", "onnxruntime", "rich", "platformdirs", "huggingface_hub", "httpx2"}


def imported_by(*arguments, environment=None):
    """Modules that a run of the command line loads."""
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        f"sys.argv = ['detcli', *{list(map(str, arguments))!r}]\n"
        "from detcli.app import main\n"
        "main()\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr
    return set(finished.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([name, "-h"] for name in ("predict", "eval", "models", "schema", "doctor", "bench")),
        ["schema"],
    ],
)
def test_help_loads_nothing_heavy(arguments):
    assert imported_by(*arguments) & HEAVY == set()


def test_a_warm_start_loads_neither_onnx_nor_rich(cache, make_model, make_picture):
    assert not cache.exists()
    arguments = ["predict", "-q", make_picture("a.png"), "-m", make_model(tail="authors")]
    assert "onnx" in imported_by(*arguments)
    assert imported_by(*arguments) & {"onnx", "rich", "platformdirs", "huggingface_hub"} == set()


def test_a_fetched_model_loads_no_more(hub, make_model, make_picture):
    hub.add("yolov10n", make_model(tail="authors").read_bytes())
    arguments = ["predict", "-q", make_picture("a.png")]
    assert "huggingface_hub" in imported_by(*arguments)
    heavy = {"onnx", "rich", "platformdirs", "huggingface_hub", "httpx2"}
    assert imported_by(*arguments) & heavy == set()


def test_listing_models_asks_no_hub():
    loaded = imported_by("models", "list")
    assert loaded & {"cv2", "onnx", "onnxruntime", "huggingface_hub", "httpx2"} == set()


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, detcli; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert set(finished.stdout.decode().split()) & HEAVY == set()


def test_public_names_are_complete():
    names = {name for name in package.__all__ if getattr(package, name) is not None}
    assert names == set(package.__all__)
    assert {*package._MODULES, "__version__"} == set(package.__all__)  # noqa: SLF001 - must agree
    with pytest.raises(AttributeError, match="nonsense"):
        _ = package.nonsense


def test_version(detcli):
    assert detcli("--version").stdout == f"detcli {package.__version__}\n"


def test_no_command_shows_the_help(detcli):
    finished = detcli()
    assert "Commands:" in finished.stdout + finished.stderr
    assert finished.returncode == 2


def test_schema_is_a_valid_schema(detcli):
    jsonschema.Draft202012Validator.check_schema(json.loads(detcli("schema").stdout))


def test_a_bug_is_reported_without_a_traceback(monkeypatch):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("detcli.commands.shared.setup.find", broken)
    result = CliRunner().invoke(app_module.app, ["predict", "x.jpg", "-m", "y.onnx"])
    assert result.exit_code == 1
    assert "a bug in detcli: ZeroDivisionError: oops" in result.stderr
    assert "Traceback" not in result.stderr


def test_completion_is_offered(detcli):
    assert "--install-completion" in detcli("--help").stdout
