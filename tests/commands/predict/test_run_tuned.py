"""What `detcli tune --write` kept, used by predict."""

import hashlib
import json
import logging
import os
import subprocess
import sys

import optional
import pytest
from backend.openvino.bfloat16 import NO_BFLOAT16, multiplies_in_bfloat16
from json_lines import column_of

from detcli.run.machine import machine_name

MANY = "many = { batch = 2, workers = 1 }"


@pytest.fixture
def tuned(predict, tmp_path, monkeypatch, caplog):
    """Run predict with a table for the colour model: what it says of it, and what it did."""
    caplog.set_level(logging.INFO, "detcli")
    monkeypatch.delenv("DETCLI_DEVICE")
    monkeypatch.setenv("DETCLI_CONFIG", str(tmp_path / "detcli.toml"))

    def run(line, lines=MANY, machine=None, top="", **expectations):
        digest = hashlib.sha256((tmp_path / "colours.onnx").read_bytes()).hexdigest()
        table = f"[tuned.{digest}.{json.dumps(machine or machine_name())}]"
        (tmp_path / "detcli.toml").write_text(f"{top}\n{table}\n{lines}\n")
        completed = predict(line, **expectations)
        return "\n".join(message for message in caplog.messages if "tuned" in message), completed

    return run


LOADED = """
import sys
from detcli.cli.app import app
try:
    app(["predict", "a.png", "-m", "colours.onnx", "-q"])
except SystemExit:
    print("detcli.run.machine" in sys.modules)
"""

CPU = 'many = { device = "cpu", batch = 2 }\nstart = { device = "cpu", workers = 1 }'


def test_it_is_used_for_its_model_here(tuned):
    message, completed = tuned("a.png a.png", CPU)
    assert message == "tuned for colours.onnx on this machine: --device cpu --batch 2"
    assert set(column_of(completed.records, "device")) == {"cpu"}


def test_one_image_has_a_choice_of_its_own(tuned):
    message, _ = tuned("a.png", CPU)
    assert message.endswith("--device cpu --workers 1")


def test_fast_cores_may_be_the_choice(tuned, monkeypatch):
    pinned = []
    monkeypatch.setattr("detcli.run.use_fastest_cores", lambda: pinned.append(True))
    message, _ = tuned("a.png a.png", "many = { fast_cores = true }")
    assert message.endswith(": --fast-cores")
    assert pinned == [True]
    message, _ = tuned("a.png a.png --no-fast-cores", "many = { fast_cores = true }")
    assert pinned == [True]


def test_another_model_does_not_use_it(tuned, make_model):
    make_model("other.onnx", tail="transposed")
    message, completed = tuned("a.png a.png -m other.onnx", CPU)
    assert message == "nothing was tuned for other.onnx on this machine"
    assert completed.records


def test_another_machine_does_not_use_it(tuned):
    message, _ = tuned("a.png a.png", CPU, machine="Another processor, 64 cores")
    assert message == "nothing was tuned for colours.onnx on this machine"


@pytest.mark.parametrize("option", ["--device cpu", "--no-half"])
def test_what_is_given_wins(tuned, option):
    message, _ = tuned(f"a.png a.png {option}", 'many = { device = "openvino", half = true }')
    name = option.split()[0].replace("--no-", "--")
    assert message.endswith(f"gives way to {name}")


def test_a_default_of_the_user_wins(tuned):
    message, _ = tuned("a.png a.png", CPU, top='device = "cpu"')
    assert message.endswith("gives way to --device")


def test_a_batch_that_is_given_wins_alone(tuned):
    message, _ = tuned("a.png a.png --batch 1", CPU)
    assert message.endswith("on this machine: --device cpu")


def test_a_model_in_8_bits_stands_for_its_own(tuned, make_model):
    quantized = make_model("kept.onnx", tail="transposed")
    message, completed = tuned("a.png a.png", f'many = {{ device = "cpu", model = "{quantized}" }}')
    assert set(column_of(completed.records, "model")) == {"kept"}
    assert f"--model {quantized}" in message


@pytest.mark.parametrize("name", ["model", "half"])
def test_a_run_that_began_without_it_is_told_what_it_changes(tuned, make_model, name):
    if name == "half":
        optional.require("openvino")
        if not multiplies_in_bfloat16():
            pytest.skip(NO_BFLOAT16)
    quantized = make_model("kept.onnx", tail="transposed")
    choices = {
        "model": f'device = "cpu", model = "{quantized}"',
        "half": 'device = "openvino", half = true',
    }
    line = "a.png a.png --resume x.jsonl --device"
    tuned(f"{line} cpu")
    says = "--device auto does without "
    tuned(line.removesuffix(" --device"), f"many = {{ {choices[name]} }}", code=2, says=says)
    tuned(f"{line} auto", f"many = {{ {choices[name]} }}")


def test_one_that_is_gone_is_named(tuned):
    message, completed = tuned("a.png a.png", 'many = { model = "gone.onnx" }')
    assert "gone.onnx, tuned for colours.onnx, is gone" in message
    assert "detcli tune --write" in message
    assert set(column_of(completed.records, "model")) == {"colours"}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("many = { conf = 0.9 }", "[tuned] sets 'conf'"),
        ('many = { batch = "two" }', "--batch: 'two' is not a valid int"),
    ],
)
def test_a_table_that_somebody_changed_is_refused(tuned, lines, says):
    tuned("a.png a.png", lines, code=2, says=says)


@pytest.mark.parametrize("lines", ["", "many = 3"])
def test_a_table_without_a_choice_changes_nothing(tuned, lines):
    _, completed = tuned("a.png a.png", lines)
    assert completed.records


def test_runs_in_shards_may_be_on_other_machines(tuned, shards_here):  # noqa: ARG001
    message, _ = tuned("a.png a.png -o boxes/", CPU)
    assert message == ""


@pytest.mark.slow
def test_without_a_table_nothing_is_loaded_for_it(predict, tmp_path):
    predict()  # makes the image and the model
    completed = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert completed.stdout.splitlines()[-1] == "False"


def test_v_says_what_is_used(detcli, make_model, make_image, tmp_path):
    model = make_model()
    image = make_image("a.png")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    machine = json.dumps(machine_name())
    (tmp_path / "detcli.toml").write_text(f"[tuned.{digest}.{machine}]\n{CPU}\n")
    environment = os.environ | {"DETCLI_CONFIG": str(tmp_path / "detcli.toml")}
    environment.pop("DETCLI_DEVICE", None)
    completed = detcli("predict", "-v", "-m", model, image, env=environment)
    assert (
        f"detcli: tuned for {model} on this machine: --device cpu --workers 1" in completed.stderr
    )
