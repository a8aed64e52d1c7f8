import pytest

from detcli.commands.verify.report import VerifyRequest
from detcli.errors import UsageError


@pytest.mark.parametrize("seed", [0, 1])
def test_random_pictures_are_for_tensors_only(seed):
    with pytest.raises(UsageError, match="random pictures cannot compare detections"):
        VerifyRequest("a.onnx", "b.onnx", random=seed)
    for option in ("tensors", "bisect"):
        assert VerifyRequest("a.onnx", "b.onnx", random=seed, **{option: True}).compares_tensors


@pytest.mark.parametrize("names", [("a.onnx", "b.onnx"), ("a.jsonl", "b.jsonl")])
@pytest.mark.parametrize("iou", [0, -1, 1.5])
def test_an_iou_out_of_range(names, iou):
    with pytest.raises(UsageError, match="--iou"):
        VerifyRequest(*names, images=("pictures",), iou=iou)


@pytest.mark.parametrize(
    "option", ["half", "recursive", "tensors", "bisect", "box_format", "preprocess"]
)
def test_options_about_running_a_model(option):
    with pytest.raises(
        UsageError, match=f"--{option.replace('_', '-')} applies to running a model"
    ):
        VerifyRequest("a.jsonl", "b.jsonl", **{option: True})
