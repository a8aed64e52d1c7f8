import pytest

from detcli.commands.bench.request import BenchRequest, Mode, TopKRequest
from detcli.errors import UsageError


def test_latency_takes_one_detector():
    with pytest.raises(UsageError, match="--workers 2") as caught:
        BenchRequest("a.onnx", workers=2)
    assert "--mode throughput" in caught.value.hint
    assert BenchRequest("a.onnx", workers=1).workers == 1
    assert BenchRequest("a.onnx", Mode.THROUGHPUT, workers=2).workers == 2


def test_one_device_at_a_time():
    with pytest.raises(UsageError, match="several devices") as caught:
        BenchRequest("a.onnx", device="cpu,cuda")
    assert "--sweep device=cpu,cuda" in caught.value.hint


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_seconds_must_be_a_duration(seconds):
    with pytest.raises(UsageError, match=r"--seconds .* is not a duration"):
        BenchRequest("a.onnx", seconds=seconds)
    with pytest.raises(UsageError, match=r"--seconds .* is not a duration"):
        TopKRequest(seconds=seconds)
