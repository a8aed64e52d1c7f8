"""The test detector: right on the CPU and on the kernels, and it notices wrong answers."""

import numpy as np
import pytest
from backend.cuda.doubles import open_on_host

import detcli.backend
from detcli.commands.doctor import process
from detcli.commands.doctor.process import Outcome, ask
from detcli.detections import Detections
from detcli.errors import DeviceError


def test_the_cpu_passes():
    assert process.trial("cpu") is None
    assert ask("trial", "cpu") == Outcome()


def test_the_kernels_pass(driver, monkeypatch):
    opened = []

    def open_backend(device, model):
        opened.append(device)
        return open_on_host(driver, model)

    monkeypatch.setattr(detcli.backend, "open_backend", open_backend)
    assert process.trial("cuda") is None
    assert opened == ["cuda"]
    assert driver.launched


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
    ids=["one missing", "boxes", "scores", "classes", "NaN"],
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
    answer = process.trial("cpu")
    assert answer["reason"].startswith("the test detector gave wrong boxes")
    assert answer["hint"]


def test_a_device_error_is_reported_without_folders(monkeypatch):
    def refuse(*_):
        raise DeviceError("no /home/zaphod/x.so", "pip install 'detcli[cuda]'")

    monkeypatch.setenv("USER", "detcli")  # a service account; commands in hints stay as they are
    monkeypatch.setattr(detcli.backend, "open_backend", refuse)
    assert process.trial("cuda") == {"reason": "no x.so", "hint": "pip install 'detcli[cuda]'"}


def test_an_unknown_device():
    assert "unknown device 'gpu'" in ask("trial", "gpu").value["reason"]


def test_a_trial_writes_no_files(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    assert ask("trial", "cpu") == Outcome()
    assert not cache.exists()
