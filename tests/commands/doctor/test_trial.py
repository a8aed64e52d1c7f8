"""The small detector: right on the CPU, on the kernels, and wrong where something is wrong."""

import numpy as np
import pytest
from backend.cuda.doubles import open_on_host
from backend.cuda.host_gpu import HostGpu
from backend.cuda.shim import Shim, kernel_sources

import detcli.backend
from detcli.commands.doctor import trial
from detcli.commands.doctor.devices import try_device
from detcli.commands.doctor.process import Outcome
from detcli.detections import Detections
from detcli.errors import DeviceError


def test_the_cpu_gives_the_right_answer():
    assert trial.trial("cpu") is None
    assert try_device("cpu") == Outcome()


def test_so_do_the_kernels(pytestconfig, monkeypatch):
    gpu = HostGpu(Shim(kernel_sources(), pytestconfig.cache.mkdir("shim")), late=True)
    opened = []

    def open_backend(device, model):
        opened.append(device)
        return open_on_host(gpu, model)

    monkeypatch.setattr(detcli.backend, "open_backend", open_backend)
    assert trial.trial("cuda") is None
    assert opened == ["cuda"]
    gpu.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found[:1],
        lambda found: Detections(found.xyxy + 1, found.score, found.class_id, found.names),
        lambda found: Detections(found.xyxy, found.score / 2, found.class_id, found.names),
        lambda found: Detections(found.xyxy, found.score, found.class_id[::-1].copy(), found.names),
        lambda found: Detections(
            np.full_like(found.xyxy, np.nan), found.score, found.class_id, found.names
        ),
    ],
    ids=["one is lost", "boxes", "scores", "classes", "NaN"],
)
def test_a_wrong_answer_is_noticed(change, monkeypatch):
    class Wrong:
        def __init__(self, backend):
            self._backend = backend

        def __getattr__(self, name):
            return getattr(self._backend, name)

        def select(self, *arguments):
            found = self._backend.select(*arguments)()
            return lambda: [change(one) for one in found]

    open_backend = detcli.backend.open_backend
    monkeypatch.setattr(detcli.backend, "open_backend", lambda *given: Wrong(open_backend(*given)))
    answer = trial.trial("cpu")
    assert answer["reason"].startswith("a small detector gave wrong boxes")
    assert answer["hint"]


def test_a_refusal_is_passed_on_without_folders(monkeypatch):
    def refuse(*_):
        raise DeviceError("no /home/zaphod/x.so", "pip install 'detcli[cuda]'")

    monkeypatch.setenv("USER", "detcli")  # of a service; a command stays what it is
    monkeypatch.setattr(detcli.backend, "open_backend", refuse)
    assert trial.trial("cuda") == {"reason": "no x.so", "hint": "pip install 'detcli[cuda]'"}


def test_a_device_that_there_is_not_says_so_from_its_process():
    assert "unknown device 'gpu'" in try_device("gpu").value["reason"]


def test_nothing_is_left_anywhere_and_nothing_needs_a_place(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    assert try_device("cpu") == Outcome()
    assert not cache.exists()
