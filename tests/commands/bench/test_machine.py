import hashlib
import os
import platform
import sys

import psutil
import pytest

from detcli.commands.bench.machine import (
    GpuState,
    describe_machine,
    describe_model,
    describe_software,
)
from detcli.errors import DependencyError, ModelError


def test_nothing_names_the_machine():
    told = describe_machine(None)
    assert platform.node() not in {told.processor, told.architecture, told.system}
    assert told.cores >= 1
    assert told.gpu is told.driver is None


def test_the_gpu_takes_part():
    told = describe_machine(GpuState("NVIDIA H200", "580.65", 1, ()))
    assert (told.gpu, told.driver) == ("NVIDIA H200", "580.65")


def test_a_system_without_proc(monkeypatch, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("has none anyway")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    with pytest.raises(DependencyError, match="meminfo: No such file or directory") as caught:
        describe_machine(None)
    assert "mount -t proc" in caught.value.hint


def test_versions():
    told = describe_software()
    assert told.numpy[0].isdigit()
    assert told.onnxruntime is not None


def test_a_model_is_known_by_its_content(make_model):
    path = make_model()
    told = describe_model(str(path), path)
    assert told.file == str(path)
    assert told.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["none.onnx", "."])
def test_a_model_that_cannot_be_read(name, tmp_path):
    with pytest.raises(ModelError, match="cannot read"):
        describe_model(name, tmp_path / name)


def test_a_pipe_in_place_of_a_model_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ModelError, match="not a regular file"):
        describe_model("pipe.onnx", tmp_path / "pipe.onnx")
