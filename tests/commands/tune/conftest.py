"""Answers of the commands that tune starts, made up: no test depends on a time."""

import itertools
import json
import os
from pathlib import Path

import colour_model
import convolution_model
import forked
import numpy as np
import pytest
from onnx import numpy_helper
from report_schemas import validator

from detcli.cli.console import process_error
from detcli.commands.tune.process import CODES_AFTER_REPORT
from detcli.commands.tune.run import Tuning

SPREAD = 0.01  # of a made interval


class Commands:
    """Answers of commands, by the way that they run; what is missing is asked of the command."""

    def __init__(self):
        self.asked = []  # name and way, in order
        self.rates = {}  # images a second by way; others run 10
        self.disagreeing = {}  # share of boxes
        self.pairs = 1000
        self.failures = {}  # by name and way, or by name
        self.ended = lambda *_: False  # whether the time is over when a command is asked for
        self.made = {"bench", "predict", "verify", "convert", "eval"}  # the others really run
        self.run_really = Tuning._run_command  # noqa: SLF001

    def run(self, name, options):
        """What a command that really runs prints as JSON: in a fork, which is faster."""
        prints_json = name != "predict"
        words = [name, "--quiet"]
        if prints_json:
            words += ["--format", "json"]
        words += options
        environment = os.environ | {"DETCLI_CONFIG": os.devnull}
        completed = forked.run(words, env=environment)
        if completed.returncode and (
            completed.returncode not in CODES_AFTER_REPORT or not completed.stdout
        ):
            raise process_error(completed.returncode, completed.stderr)
        return json.loads(completed.stdout) if prints_json else None

    def way(self, name, options):
        """The name of the way that a command's options are about."""
        if name == "verify":
            return Path(options[1]).stem.replace("-", " ")
        words = dict(itertools.pairwise(options))
        model = words.get("--model", options[-1])
        parts = []
        if words.get("--device"):
            parts.append(words["--device"])
        if "--half" in words:
            parts.append("half")
        if "int8" in model:
            parts.append("int8")
        if "--batch" in words:
            parts.append(f"batch {words['--batch']}")
        if "--workers" in words:
            parts.append(f"workers {words['--workers']}")
        if "--fast-cores" in options:
            parts.append("fast cores")
        return " ".join(parts)

    def answer(self, tuning, name, options):
        way_name = self.way(name, options)
        self.asked.append((name, way_name))
        for key in ((name, way_name), name):
            if key in self.failures:
                raise self.failures[key]
        if self.ended(tuning, way_name):
            return self.run_really(tuning, name, options)
        if name not in self.made:
            return self.run(name, options)
        if name == "eval":
            return {"metrics": {"map50_95": 0.5}}
        if name in {"predict", "convert"}:
            return Path(options[options.index("-o") + 1]).write_bytes(name.encode())
        return getattr(self, name)(way_name, options)

    def verify(self, way_name, options):
        share = self.disagreeing.get(way_name, 0.0)
        limit = float(options[options.index("--tolerance") + 1].rpartition("=")[2])
        numbers = {
            "pairs": self.pairs,
            "missing": int(1000 * share),
            "extra": 0,
            "disagreeing": share,
        }
        largest = {"largest_score_difference": share, "largest_corner_difference": 0.0}
        return {"agree": share <= limit, "detections": numbers | largest}

    def bench(self, way_name, options):
        rate = self.rates.get(way_name, 10.0)
        mode = options[options.index("--mode") + 1]
        low, high = rate * (1 - SPREAD), rate * (1 + SPREAD)
        return {
            "noise": {"warnings": []},
            "memory": {"host_peak_bytes": 100, "device_bytes": None},
            "conditions": {"batch": 1, "workers": 2},
            "throughput": {
                "pictures_per_second": rate,
                "interval": {"estimate": rate, "low": low, "high": high},
            },
            "latency": {
                "undisturbed_median": {"estimate": 1 / rate, "low": 1 / high, "high": 1 / low}
            },
            "cold_start": {"first_record_s": 1 / rate},
        } | {"latency" if mode == "throughput" else "throughput": None}


@pytest.fixture
def commands(monkeypatch):
    commands = Commands()
    monkeypatch.setattr("detcli.commands.tune.configurations.available_cores", lambda: 8)

    def answer(tuning, name, options, arguments=(), *, limited=True):
        assert isinstance(limited, bool)
        words = list(options)
        if arguments:
            words += ["--"] + list(arguments)
        return commands.answer(tuning, name, words)

    monkeypatch.setattr(Tuning, "_run_command", answer)
    return commands


@pytest.fixture
def tuning_images(make_image, tmp_path):
    make_image("pics/a.png", ("red", 1, 1), ("green", 3, 3))
    make_image("pics/b.png", ("green", 2, 2), ("blue", 5, 5))
    return tmp_path / "pics"


@pytest.fixture
def tune(invoke, tmp_path, monkeypatch):
    """Run `detcli tune`, which ends with a code: its report."""
    monkeypatch.setenv("DETCLI_CONFIG", str(tmp_path / "detcli.toml"))
    monkeypatch.delenv("DETCLI_DEVICE")
    (tmp_path / "detcli.toml").touch()

    def run(*words, code=0, says=""):
        completed = invoke("tune", words, cwd=tmp_path)
        assert completed.returncode == code, completed.stderr
        assert says in completed.stderr
        assert "Traceback" not in completed.stderr
        if completed.stdout.startswith("{"):
            report = json.loads(completed.stdout)
            validator("tune").validate(report)
            return report
        return completed.stdout

    return run


@pytest.fixture
def fragile(tmp_path):
    """A model of which 8 bits leave only what is red: in its middle, red is 1000 times as large."""
    model = convolution_model.build(metadata={"names": str(dict(enumerate(colour_model.NAMES)))})
    scale = np.array([1000, 1, 1], np.float32).reshape(3, 1, 1, 1)
    factors = {"layer1_kernel": scale, "cells_kernel": 1 / scale}
    for tensor in model.graph.initializer:
        if tensor.name in factors:
            scaled = numpy_helper.to_array(tensor) * factors[tensor.name]
            tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))
    path = tmp_path / "fragile.onnx"
    path.write_bytes(model.SerializeToString())
    return path
