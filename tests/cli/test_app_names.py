"""Names that no file can have end with an error of the user."""

import pytest

LONG_NAME = "n" * 400  # file systems take up to 255 bytes

COMMANDS = {
    "output": (["predict", "none.jpg", "-m", "codes", "-o", LONG_NAME], 1),
    "save coco": (["predict", "none.jpg", "-m", "codes", "--save-coco", LONG_NAME], 1),
    "save dataset": (["predict", "none.jpg", "-m", "codes", "--save-dataset", LONG_NAME], 1),
    "merge": (["merge", LONG_NAME], 2),
    "promise": (["promise", "check", LONG_NAME], 2),
    "convert": (["convert", "codes", "-o", LONG_NAME, "--half"], 2),
    "report": (["report", LONG_NAME, "-o", "page"], 3),
    "report's images": (["report", "none.jsonl", "-o", "page", "--images", LONG_NAME], 2),
    "page": (["predict", "none.jpg", "-m", "codes", "--report", f"{LONG_NAME}.html"], 2),
}
"""What is typed, and the exit code."""


@pytest.mark.parametrize(("command", "code"), COMMANDS.values(), ids=COMMANDS)
def test_a_name_that_is_too_long_is_an_error_of_the_user(invoke, tmp_path, command, code):
    completed = invoke(command, cwd=tmp_path)
    assert completed.returncode == code
    assert LONG_NAME in completed.stderr
    assert "bug in detcli" not in completed.stderr


@pytest.mark.parametrize("key", ["save", "output", "model"])
def test_a_nul_in_a_default_is_refused(invoke, tmp_path, monkeypatch, key):
    path = tmp_path / "detcli.toml"
    path.write_text(f'{key} = "a\\u0000b"')
    monkeypatch.setenv("DETCLI_CONFIG", str(path))
    monkeypatch.delenv(f"DETCLI_{key.upper()}", raising=False)
    completed = invoke("predict", "none.jpg", cwd=tmp_path)
    assert completed.returncode == 2
    assert "NUL character" in completed.stderr
