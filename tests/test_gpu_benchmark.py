"""The benchmark of the kernels and their peers without a GPU; and its clock."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.gpu import PROVIDER_OPTIONS, bench, nms, selection, top_k
from benchmarks.gpu.clock import GpuClock, HostClock, TooSlowToQueueError
from benchmarks.gpu.launches import launch_all
from benchmarks.gpu.measure import Case, Plan, Way, failures, measure
from benchmarks.gpu.peers import DisagreementError
from commands.bench.requests import shorten

from detcli.backend.cuda import network
from detcli.core.device import DeviceOptions

ONCE = Plan(samples=1)


@pytest.fixture
def host(driver):
    from detcli.backend.cuda.driver import Gpu

    driver.start(late=False)
    gpu = Gpu(0)
    yield gpu
    gpu.close()


@pytest.mark.parametrize("section", list(bench.KERNELS))
def test_every_way_that_runs_here_gives_numpys_answer(section, host, tmp_path):
    """The cases' code without their events; peers take part where they are installed."""
    path = tmp_path / "section.json"
    told = []
    records = bench.kernel_records(host, HostClock, ONCE, section, "TINY")
    assert bench.write(path, records, told.append) == []
    cases = json.loads(path.read_text())["cases"]
    assert len(cases) == len(told) == len(bench.KERNELS[section].TINY)
    for case in cases:
        ours, *peers = case["ways"]
        assert {"cold", "warm", "call", "host"} <= set(ours)
        assert ("kernels" in ours) == (section in {"selection", "nms"})
        assert all("host" in peer or peer["missing"] for peer in peers), peers
    assert any("host" in peer for case in cases for peer in case["ways"][1:])


def test_every_kernel_is_launched_for_the_sanitizers(host, shim):
    assert launch_all(host, shim.kernels) == []
    assert launch_all(host, shim.kernels | {"another"}) == ["another: never launched"]


def case_of(**ways):
    def is_right(_number, answer, _ours):
        if answer != 1:
            raise DisagreementError("not 1")

    return Case("one", 1, ways, is_right)


def answering(answer):
    return lambda: Way(lambda _: answer, lambda given: given)


def raising(error):
    def make():
        raise error

    return make


def test_a_wrong_answer_of_ours_is_a_failure_a_peers_is_not(host):
    clock = HostClock(host)
    right, wrong = answering(1), answering(2)
    assert failures([measure(clock, ONCE, case_of(detcli=right, peer=wrong))]) == []
    record = measure(clock, ONCE, case_of(detcli=wrong, peer=raising(OSError("gone"))))
    assert failures([record]) == ["one: DisagreementError: not 1"]
    assert record["ways"][1]["error"] == "OSError: gone"


def test_ties_are_forgiven_to_peers_only():
    rows = np.array([[0, 0, 1, 1, score, 0] for score in (0.9, 0.5, 0.5, 0.4)], np.float32)
    swapped, other = rows.copy(), rows.copy()
    swapped[1, 5] = 7
    other[0, 5] = 7
    selection.compare(swapped, rows, exactly=False)
    with pytest.raises(DisagreementError):
        selection.compare(swapped, rows, exactly=True)
    with pytest.raises(DisagreementError):
        selection.compare(other, rows, exactly=False)
    with pytest.raises(DisagreementError):
        selection.compare(rows[:3], rows, exactly=False)
    best = np.array([[0.9, 0.5, 0.5, 0.1]]), np.array([[3, 1, 2, 0]])
    top_k.compare((best[0], np.array([[3, 2, 1, 0]])), best, exactly=False)
    with pytest.raises(DisagreementError):
        top_k.compare((best[0], np.array([[3, 2, 1, 0]])), best, exactly=True)
    with pytest.raises(DisagreementError):
        top_k.compare((best[0], np.array([[9, 1, 2, 0]])), best, exactly=False)
    with pytest.raises(DisagreementError):
        nms.nearly(rows[:3], rows)


def test_the_network_section_is_detcli_bench(make_model, make_picture, monkeypatch):
    shorten(monkeypatch)
    pictures = [make_picture("a.png", ("red", 1, 1))]
    models = {"float32": make_model(batch=None), "broken": pictures[0]}
    plan = Plan(seconds=0.05)
    right, broken = bench.network_records("cpu", models, pictures, plan, batches=(2,))
    assert right["case"] == "batch 2, float32, without CUDA graph"
    [ours] = right["ways"]
    assert ours["pictures_a_second"] > 0
    assert {"host", "preprocess", "network", "selection"} <= set(ours)
    assert failures([right]) == []
    assert failures([broken])
    [record] = bench.network_records(
        "cpu", {"float32": make_model(batch=None)}, pictures, plan, (1,), switches=("use_tf32",)
    )
    assert [way["way"] for way in record["ways"]] == ["detcli", "detcli, use_tf32"]
    assert all(way["pictures_a_second"] > 0 for way in record["ways"])


@pytest.mark.parametrize("option", PROVIDER_OPTIONS)
def test_an_option_is_on_for_a_while(option):
    def opened():
        return network.cuda_provider(0, 7, DeviceOptions(), graph=True)

    name, plain = opened()
    assert plain.get(option, "0") == "0"
    with bench.switched_on(option):
        assert opened() == (name, plain | {option: "1"})
    assert opened() == (name, plain)


class FakeCuda:
    """A GPU's stream, with a clock of its own: 1e9 cycles a second, and 2 us for each kernel."""

    architecture, ordinal, stream, queue = "sm_90", 0, 7, None

    def __init__(self):
        self.now = 0.0  # seconds; when the stream will have finished its work
        self.marks = {}

    def launch(self, _stream, _config, kernel, *arguments):
        self.work(2e-6 + (int(arguments[0]) / 1e9 if kernel == "delay" else 1e-3))

    def work(self, seconds):
        self.now = max(self.now, time.perf_counter()) + seconds

    def copy(self, _target, _source, size):
        self.work(2 * size / 4e12)

    def clear(self, *_):
        self.work(0.0)

    def allocate(self, size):
        return SimpleNamespace(address=4096, size=size, close=lambda: None)

    def get_kernel(self, name):
        return name

    def synchronize(self):
        while time.perf_counter() < self.now:
            pass


@pytest.fixture
def cuda(monkeypatch):
    """A GPU whose driver and clock are made up."""
    core, driver = pytest.importorskip("cuda.core"), pytest.importorskip("cuda.bindings.driver")
    gpu, success = FakeCuda(), driver.CUresult.CUDA_SUCCESS

    def record(mark, stream):
        assert stream == gpu.stream
        gpu.work(0.0)
        gpu.marks[mark] = gpu.now
        return (success,)

    fakes = {
        "cuEventCreate": lambda _flags: (success, object()),
        "cuEventRecord": record,
        "cuEventSynchronize": lambda _mark: (gpu.synchronize(), (success,))[1],
        "cuEventElapsedTime": lambda a, b: (success, 1000 * (gpu.marks[b] - gpu.marks[a])),
        "cuDeviceGetAttribute": lambda _attribute, _device: (success, 50 << 20),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(driver, name, fake)
    monkeypatch.setattr(core, "launch", gpu.launch)
    monkeypatch.setattr("detcli.backend.cuda.driver.compile_file", lambda _path, _arch: gpu)
    return gpu


def test_launching_does_not_count(cuda, monkeypatch):
    clock = GpuClock(cuda)
    assert clock.empty == pytest.approx(0, abs=1e-9)
    assert clock.empty_kernel == pytest.approx(2e-6, abs=1e-9)
    assert clock.bandwidth == pytest.approx(4e12)

    def slowly(seconds):
        time.sleep(0.002)  # the host's part
        cuda.work(seconds)

    steps = [lambda: slowly(1e-5), lambda: slowly(3e-5)]
    taken = clock.queued(*steps, before=clock.flush)
    assert taken == pytest.approx([1e-5, 3e-5], abs=1e-9)
    assert clock.call(lambda: slowly(1e-5)) > 0.002
    clock.relax()
    monkeypatch.setattr("benchmarks.gpu.clock.MAX_DELAY", 0.01)
    with pytest.raises(TooSlowToQueueError):
        clock.queued(cuda.synchronize)
