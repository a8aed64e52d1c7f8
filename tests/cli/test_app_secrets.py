"""Secrets of addresses: no command shows or writes one, whichever option it is typed with."""

import os
import traceback
from pathlib import Path

import optional
import pytest
import stream_server
import thinning
import typer

from detcli import Detector, predict
from detcli.cli.app import app
from detcli.core.errors import DetcliError, DetcliWarning
from detcli.core.text import public_name, public_text

pytestmark = pytest.mark.slow

SECRET = "S3CRET"  # noqa: S105
ADDRESS = f"http://user:{SECRET}@127.0.0.1:9/a.jpg?t={SECRET}#{SECRET}"
SPACED = f"http://user:my '{SECRET}@127.0.0.1:9/a b.jpg?t=my {SECRET}"
SIGNED = f"az://box/a.jpg?sv=1&se=2&sig={SECRET}"

BASE = {
    "predict": {"source": "a.png", "--model": "colours.onnx"},
    "merge": {"folder": "boxes"},
    "status": {"folder": "boxes"},
    "count": {"records": "boxes.jsonl"},
    "sort": {"records": "boxes.jsonl", "--by": "animal", "--output": "sorted"},
    "report": {"records": "boxes.jsonl", "--output": "page"},
    "inspect": {"model": "colours.onnx"},
    "convert": {"model": "colours.onnx", "--output": "new.onnx"},
    "verify": {"model": "colours.onnx", "other": "colours.onnx", "--images": "a.png"},
    "eval": {"model": "colours.onnx", "--data": "data.yaml"},
    "bench": {"source": "a.png", "--model": "colours.onnx"},
    "tune": {"model": "colours.onnx", "pictures": "none.png"},
    "doctor": {},
    "schema": {"name": "predict"},
    "list": {},
    "pull": {"name": "codes"},
    "path": {"name": "codes"},
}
"""What each command needs besides what is tried."""


def parameters():
    """Each command with each of its arguments, and options that have a value."""
    commands = typer.main.get_command(app)
    pairs = []
    for name in commands.list_commands(None):  # type: ignore[attr-defined]
        command = commands.get_command(None, name)  # type: ignore[attr-defined]
        if name == "models":
            for below in command.list_commands(None):
                pairs += values_of(("models", below), command.get_command(None, below))
        else:
            pairs += values_of((name,), command)
    return pairs


def values_of(words, command):
    """The parameters of a command; what --metadata holds is meant to be in the new model."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            yield words, parameter.name
        elif not parameter.is_flag and parameter.opts[-1] not in {"--verbose", "--metadata"}:
            yield words, parameter.opts[-1]


PARAMETERS = parameters()
TRIED = thinning.thin("options whose value holds a secret", PARAMETERS, count=27)


@pytest.fixture
def folder_with_inputs(tmp_path, monkeypatch, make_model, make_image):
    monkeypatch.chdir(tmp_path)
    make_model()
    make_image("a.png", ("red", 2, 2))
    (tmp_path / "data.yaml").write_text("val: .\nnames: [red, green, blue]\n")
    (tmp_path / "boxes.jsonl").touch()
    return tmp_path


def require_no_secret(result, folder_with_inputs):
    """Nothing that was printed and no file has the secret, in its name or content."""
    assert SECRET not in result.stdout
    assert SECRET not in result.stderr
    for root, subfolders, files in os.walk(folder_with_inputs):
        for name in list(subfolders) + list(files):
            assert SECRET not in name
        for name in files:
            assert SECRET.encode() not in Path(root, name).read_bytes(), name


def command_line(words, parameter, address):
    """A command whose parameter is an address; the others are as it needs them."""
    values = BASE[words[-1]] | {parameter: address}
    arguments = []
    options = []
    for name, value in values.items():
        if name.startswith("-"):
            options += [name, value]
        else:
            arguments.append(value)
    if words[0] not in {"status", "doctor", "schema", "models"}:
        options.append("-vv")
    return list(words) + arguments + options


def test_every_command_is_tried():
    tried = {words[-1] for words, _ in PARAMETERS}
    assert tried == BASE.keys()
    assert len(PARAMETERS) > 100


@pytest.mark.parametrize(("words", "parameter"), TRIED)
def test_no_option_of_any_command_shows_a_secret(detcli, folder_with_inputs, words, parameter):
    result = detcli(command_line(words, parameter, ADDRESS))
    require_no_secret(result, folder_with_inputs)
    assert "Traceback" not in result.stderr or "-vv" in result.args


@pytest.mark.parametrize(
    ("words", "parameter"),
    thinning.thin("options whose value has a secret and spaces", PARAMETERS, count=81),
)
def test_no_option_shows_the_rest_of_an_address_with_spaces(
    invoke, folder_with_inputs, words, parameter
):
    """Nothing in a message tells where such an address ends."""
    result = invoke(command_line(words, parameter, SPACED))
    require_no_secret(result, folder_with_inputs)


@pytest.mark.parametrize(
    ("words", "parameter"),
    [
        (("predict",), "source"),
        (("predict",), "--output"),
        (("predict",), "--model"),
        (("merge",), "folder"),
        (("merge",), "--output"),
        (("status",), "folder"),
        (("report",), "records"),
        (("verify",), "--images"),
        (("bench",), "source"),
    ],
)
def test_no_signature_of_an_object_is_shown(detcli, folder_with_inputs, words, parameter):
    require_no_secret(detcli(command_line(words, parameter, SIGNED)), folder_with_inputs)


WRITTEN = (
    "--output --save --save-txt --save-coco --save-crops --save-dataset --report --save-mot "
    "--resume"
).split()


@pytest.mark.parametrize("option", WRITTEN)
@pytest.mark.parametrize("address", [ADDRESS, "ftp://host/out", "https://host/boxes.jsonl"])
def test_an_address_that_cannot_be_written_to_is_refused(
    invoke, folder_with_inputs, option, address
):
    before = set(folder_with_inputs.iterdir())
    result = invoke("predict", "a.png", "-m", "colours.onnx", option, address)
    assert result.returncode == 2, result.stderr
    assert "address" in result.stderr
    assert set(folder_with_inputs.iterdir()) == before


VARIABLES = ["DETCLI_MODEL", "DETCLI_CONFIG", "DETCLI_CACHE_DIR"]


@pytest.mark.parametrize("variable", VARIABLES)
def test_predict_shows_no_secret_of_a_variable(detcli, folder_with_inputs, variable):
    command = ["predict", "a.png", "-vv"]
    if variable != "DETCLI_MODEL":
        command += ["-m", "colours.onnx"]
    result = detcli(command, env={**os.environ, variable: ADDRESS})
    require_no_secret(result, folder_with_inputs)


@pytest.fixture
def doctor(request, monkeypatch):
    """Run doctor with a variable; at home the processes that it asks are those of other tests."""
    if thinning.RUNS_WHOLE:
        detcli = request.getfixturevalue("detcli")
        return lambda variable, value: detcli("doctor", env={**os.environ, variable: value})
    thinning.note("runs of doctor whose processes see a secret", 0, 1)
    request.getfixturevalue("doctor_asks_once")
    invoke = request.getfixturevalue("invoke")

    def run(variable, value):
        monkeypatch.setenv(variable, value)
        return invoke("doctor")

    return run


@pytest.mark.parametrize("variable", VARIABLES)
def test_doctor_shows_no_secret_of_a_variable(doctor, folder_with_inputs, variable):
    require_no_secret(doctor(variable, ADDRESS), folder_with_inputs)


@pytest.fixture
def defaults(folder_with_inputs):
    """A file of defaults whose model has a secret."""
    (folder_with_inputs / "detcli.toml").write_text(f'model = "{ADDRESS}"\n')
    return "detcli.toml"


def test_predict_shows_no_secret_of_the_file_of_defaults(detcli, defaults):
    result = detcli("predict", "a.png", "-vv", env={**os.environ, "DETCLI_CONFIG": defaults})
    assert SECRET not in result.stdout + result.stderr


def test_doctor_shows_no_secret_of_the_file_of_defaults(doctor, defaults):
    result = doctor("DETCLI_CONFIG", defaults)
    assert result.stdout
    assert SECRET not in result.stdout + result.stderr


@pytest.fixture
def image_server(folder_with_inputs):
    with stream_server.serve() as server:
        server.files[f"/a.png?t={SECRET}"] = (folder_with_inputs / "a.png").read_bytes()
        server.password = f"user:{SECRET}"
        yield server


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", optional.PARQUET, "labelstudio", "table"])
def test_an_address_that_is_read_leaves_no_secret_in_what_is_written(
    detcli, folder_with_inputs, image_server, form
):
    address = image_server.url(f"/a.png?t={SECRET}", user=f"user:{SECRET}@")
    options = (
        "--save saved --save-coco coco.json --save-txt txt --save-crops crops "
        "--save-dataset dataset --report page"
    ).split()
    options += ["--format", form]
    if form == "jsonl":
        options.append("--provenance")
    if form != "table":
        options += ["-o", "boxes.out"]
    result = detcli("predict", address, "-m", "colours.onnx", "-vv", options)
    assert result.returncode == 0, result.stderr
    assert ("/a.png?t=" + SECRET, image_server.password) in image_server.requests
    require_no_secret(result, folder_with_inputs)


def test_a_journal_holds_no_secret(detcli, folder_with_inputs, image_server):
    address = image_server.url(f"/a.png?t={SECRET}", user=f"user:{SECRET}@")
    for _ in range(2):
        options = ("--provenance", "--resume", "new.jsonl", "-vv")
        result = detcli("predict", address, "-m", "colours.onnx", options)
        assert result.returncode == 0
        require_no_secret(result, folder_with_inputs)


def test_no_object_is_written_whose_name_holds_a_signature(invoke, folder_with_inputs):  # noqa: ARG001
    address = f"az://box/boxes.jsonl?sv=1&sig={SECRET}"
    result = invoke("predict", "a.png", "-m", "colours.onnx", "-o", address)
    assert result.returncode == 2
    assert "the signature would become part of the object's name" in result.stderr


def test_a_certificate_holds_no_secret(detcli, folder_with_inputs, image_server):
    address = image_server.url(f"/a.png?t={SECRET}", user=f"user:{SECRET}@")
    command = ("verify", "colours.onnx", "colours.onnx", "--images", address, "-vv")
    result = detcli(command, "--certificate", "c.json")
    assert result.returncode == 2
    assert "a certificate would show the password" in result.stderr
    require_no_secret(result, folder_with_inputs)


@pytest.mark.parametrize("name", [ADDRESS, Path(ADDRESS)])
def test_exceptions_of_the_library_hold_no_secret(folder_with_inputs, name):  # noqa: ARG001
    with Detector("colours.onnx") as detector, pytest.raises(DetcliError) as caught:
        detector(name)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(DetcliError) as caught:
        Detector(name)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_records_of_the_library_hold_no_secret(folder_with_inputs):  # noqa: ARG001
    with Detector("colours.onnx") as detector:
        (record,) = predict(ADDRESS, detector)
    assert SECRET not in str(record.to_json())


def test_every_error_and_warning_is_safe():
    assert SECRET not in str(DetcliError(f"cannot do {ADDRESS}: no"))
    assert SECRET not in DetcliError("no", f"see {ADDRESS}").hint
    assert SECRET not in str(DetcliWarning(f"{ADDRESS} is odd"))
    assert len(str(DetcliError(":a" * 100_000))) < 10_000


@pytest.mark.parametrize(
    ("name", "public"),
    [
        (SIGNED, "az://box/a.jpg?sv=***&se=***&sig=***"),
        (
            "s3://box/a?X-Amz-Signature=x&X-Amz-Date=y",
            "s3://box/a?X-Amz-Signature=***&X-Amz-Date=***",
        ),
        ("gs://box/what?.jpg", "gs://box/what?.jpg"),
        ("s3://box/a#1.jpg", "s3://box/a#1.jpg"),
        ("http:/host/x?t=secret#part", "http:/host/x?t=***"),
        (
            "https://box.s3.amazonaws.com/a.jpg?X-Amz-Signature=x",
            "https://box.s3.amazonaws.com/a.jpg?X-Amz-Signature=***",
        ),
    ],
)
def test_an_address_is_made_safe(name, public):
    assert public_name(name) == public
    assert public_name(public) == public
    assert public_text(f"cannot read {name}: no") == f"cannot read {public}: no"
