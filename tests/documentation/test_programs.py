"""Six kinds of program that use the library run, each in a process of its own.

They use public names only, and are typed: `docs/check_examples.py` checks them beside the examples
of the documentation, by mypy as strict as it is and by pyright.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import optional
import pytest
from thinning import thin

import detcli

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"

EXPECTED_LINES = {
    "service": [
        r"/fast car, person",
        r"/exact car, person",
        r"400 image bytes: a damaged JPEG.*",
    ],
    "video_analytics": [r"seconds in the zone: {'bus': 1}", r"tracks: \[1\]"],
    "dataset_cleaner": [
        r"damaged: pics/torn\.jpg: .*damaged JPEG.*",
        r"labels: 4 \[\d+\.\d+, \d+\.\d+, \d+\.\d+, \d+\.\d+\]",
    ],
    "pools_and_forks": [r"spawn True", r"fork True", r"a Detector cannot be pickled.*"],
    "notebook": [
        r"Detector\('yolov10n', device='cpu'\)",
        r"Detections\(1 person\) \(640, 640\)",
        r"0\.3 1",
        r"0\.9 1",
        r"0 Detections\(\)",
        r"2\.0 Detections\(1 bus\) \(640, 640, 3\)",
        r"True",
    ],
    "plugin": [
        r"conf is the string 'high': give a number or None",
        r"cannot read the model no\.onnx: .*",
        r"True",
        r"\['person'\]",
        r"\['person'\]",
    ],
}
"""Patterns of the lines that each program prints."""


@pytest.mark.parametrize("name", thin("programs that use the library", EXPECTED_LINES, count=2))
def test_a_program_runs(name, workplace):
    if name == "video_analytics":
        optional.require("trackers")
    program = PROGRAMS / f"{name}.py"
    # Python 3.12 warns of a fork of a process with threads, which pools of processes have.
    options = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    # As from a shell: what detcli sets for OpenCV in this process is not passed on.
    environment = {name: value for name, value in os.environ.items() if "OPENCV" not in name}
    process = subprocess.run(
        [sys.executable] + options + [str(program)],
        cwd=workplace,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    messages = process.stderr.splitlines()
    for message in messages:
        assert message.startswith("fetching yolov10s")
    assert process.returncode == 0
    lines = process.stdout.splitlines()
    patterns = EXPECTED_LINES[name]
    if sys.platform != "linux":
        patterns = [pattern for pattern in patterns if pattern != "fork True"]
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line)


def test_all_programs_are_run():
    assert {path.stem for path in PROGRAMS.glob("*.py")} == EXPECTED_LINES.keys()


@pytest.mark.parametrize("name", EXPECTED_LINES)
def test_a_program_uses_public_names_only(name):
    tree = ast.parse((PROGRAMS / f"{name}.py").read_text(encoding="utf-8"))
    imported_names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("detcli"):
            assert node.module == "detcli"
            for alias in node.names:
                imported_names.add(alias.name)
    assert imported_names
    assert imported_names <= set(detcli.__all__)
