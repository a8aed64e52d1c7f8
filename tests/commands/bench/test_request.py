import pytest
from commands.bench.requests import bench_request

from detcli.commands.bench.request import Mode
from detcli.errors import UsageError


def test_latency_takes_one_detector():
    with pytest.raises(UsageError, match="--workers 2") as caught:
        bench_request(workers=2)
    assert "--mode throughput" in caught.value.hint
    assert bench_request(workers=1).run.device_options.workers == 1
    assert bench_request(mode=Mode.THROUGHPUT, workers=2).run.device_options.workers == 2


def test_one_device_at_a_time():
    with pytest.raises(UsageError, match="several devices") as caught:
        bench_request(device="cpu,cuda")
    assert "one after the other" in caught.value.hint
