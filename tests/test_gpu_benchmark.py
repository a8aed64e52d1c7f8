"""The benchmark of the kernels and their peers without a GPU."""

import json

import pytest
from benchmarks.gpu import bench
from benchmarks.gpu.clock import HostClock
from benchmarks.gpu.measure import Plan

pytestmark = pytest.mark.slow


@pytest.fixture
def gpu_host(driver):
    from detcli.backend.cuda.driver import Gpu

    driver.start(late=False)
    gpu = Gpu(0)
    yield gpu
    gpu.close()


@pytest.mark.parametrize("section", list(bench.KERNELS))
def test_every_way_that_runs_here_gives_numpys_answer(section, gpu_host, tmp_path):
    """The cases' code without their events; peers take part where they are installed."""
    path = tmp_path / "section.json"
    progress = []
    records = bench.kernel_records(gpu_host, HostClock, Plan(samples=1), section, "TINY")
    assert bench.write(path, records, progress.append) == []
    cases = json.loads(path.read_text())["cases"]
    assert len(cases) == len(progress) == len(bench.KERNELS[section].TINY)
    peers_that_ran = []
    for case in cases:
        ours = case["ways"][0]
        assert {"cold", "warm", "call", "host"} <= set(ours)
        assert ("kernels" in ours) == (section in {"selection", "nms"})
        for peer in case["ways"][1:]:
            if "host" in peer:
                peers_that_ran.append(peer)
            else:
                assert peer["missing"], peer
    assert peers_that_ran
