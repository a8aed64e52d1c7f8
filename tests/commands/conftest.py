"""Runs of `detcli predict`, for all commands that use what it writes."""

import shlex

import forked
import pytest
from json_lines import lines
from shard_engine import open_here


@pytest.fixture
def predict(invoke, make_model, make_image, tmp_path):
    """Run `detcli predict LINE WORDS...` beside a.png and the colour model, the default one."""
    make_image("a.png", ("red", 2, 3))
    make_model()

    def run(line="a.png", *words, code=0, says=""):
        arguments = shlex.split(line) + forked.words_of(words)
        if "-m" not in arguments and "--model" not in arguments:
            arguments.extend(["-m", "colours.onnx"])
        completed = invoke("predict", arguments, cwd=tmp_path)
        assert completed.returncode == code, completed.stderr
        assert says in completed.stderr
        assert "Traceback" not in completed.stderr
        completed.records = []
        if completed.stdout.startswith('{"schema_version"'):
            completed.records = lines(completed.stdout)
        return completed

    return run


@pytest.fixture
def browser(chromium):
    """A browser in which nothing goes wrong, and which downloads without asking."""
    chromium.messages()
    yield chromium
    assert chromium.messages() == []


@pytest.fixture
def shards_here(monkeypatch):
    """Runs in shards need no further processes."""
    monkeypatch.setattr("detcli.commands.predict.shards.open_engine", open_here)
