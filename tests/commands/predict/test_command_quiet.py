"""What --quiet hides in `detcli predict` and in each other command that has it, and what stays."""

import re

import pytest

COMMANDS = [
    "predict a.png torn.png -m colours.onnx",
    "predict a.png torn.png -m colours.onnx -o {folder}/boxes.csv --save {folder}/out",
    "verify colours.onnx colours.onnx --images pics",
    "verify boxes.jsonl boxes.jsonl",
    "inspect colours.onnx",
    "merge boxes.jsonl -o {folder}/boxes.csv",
    "report boxes.jsonl -o {folder}/page",
    "count boxes.jsonl",
    "sort boxes.jsonl --by class -o {folder}/sorted",
    "convert colours.onnx -o {folder}/named.onnx --metadata author=me",
]
TIMES = re.compile(r'"(seconds|issued|created|[a-z_]*_s)": [^,}\n]+|"(loud|quiet)/[^"]*"')
"""What differs between two runs: times, and the names of the folders that they write to."""

ERRORS_OF_INPUTS = {"predict", "verify"}
"""Commands that name the inputs which cannot be read."""


@pytest.fixture
def records(predict, tmp_path):
    """Records of an image and of a damaged one, with both images in a folder, too."""
    (tmp_path / "torn.png").write_bytes(b"torn")
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics/torn.png").write_bytes(b"torn")
    predict("a.png torn.png --conf 0.6 -q -o boxes.jsonl", code=3)
    (tmp_path / "pics/a.png").write_bytes((tmp_path / "a.png").read_bytes())


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize("line", COMMANDS)
def test_results_and_errors_stay_and_nothing_else(invoke, tmp_path, line):
    for folder in ("loud", "quiet"):
        (tmp_path / folder).mkdir()
    loud = invoke(line.format(folder="loud").split())
    quiet = invoke(line.format(folder="quiet").split(), "-q")
    assert quiet.returncode == loud.returncode, quiet.stderr
    assert TIMES.sub("", quiet.stdout) == TIMES.sub("", loud.stdout)
    messages = quiet.stderr.replace("quiet/", "loud/").splitlines()
    for message in messages:
        assert message.startswith(("detcli: error: ", "  hint: "))
    assert set(messages) <= set(loud.stderr.splitlines())
    if line.split()[0] in ERRORS_OF_INPUTS:
        assert "torn.png" in quiet.stderr
