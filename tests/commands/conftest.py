"""Runs of `detcli predict`, for all commands that use what it writes."""

import shlex

import pytest
from json_lines import lines
from shard_engine import open_here


@pytest.fixture
def predict(invoke, make_model, make_picture, tmp_path):
    """Run `detcli predict LINE WORDS...` beside a.png and the colour model, the default one."""
    make_picture("a.png", ("red", 2, 3))
    make_model()

    def run(line="a.png", *words, code=0, says=""):
        words = [*shlex.split(line), *words]
        model = [] if {"-m", "--model"} & {*words} else ["-m", "colours.onnx"]
        done = invoke("predict", *words, *model, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert says in done.stderr
        assert "Traceback" not in done.stderr
        done.records = lines(done.stdout) if done.stdout.startswith('{"schema_version"') else []
        return done

    return run


@pytest.fixture
def shards_here(monkeypatch):
    """Runs in shards need no further processes."""
    monkeypatch.setattr("detcli.commands.predict.shards.open_engine", open_here)
