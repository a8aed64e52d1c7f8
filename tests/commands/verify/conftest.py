import functools

import pytest
from colour_model import picture
from verify_requests import probe

from detcli.commands.verify.tensors import OutputComparison, bisect
from detcli.core.geometry import Picture
from detcli.model.file import ModelFile

RED = Picture.whole(picture(("red", 1, 1), ("blue", 6, 3)))


@pytest.fixture
def verify(invoke):
    return functools.partial(invoke, "verify")


@pytest.fixture
def bisected(tmp_path):
    """Bisect two models the way `detcli verify` does."""

    def run(left, right, image=RED, size=(64, 64), limit=0.001):
        paths = [tmp_path / name for name in ("a.onnx", "b.onnx")]
        for path, model in zip(paths, (left, right), strict=True):
            path.write_bytes(model.SerializeToString())
        at_head = all(ModelFile.read(path).contract for path in paths)
        probes = [probe(path, size=size, at_head=at_head) for path in paths]
        outputs = OutputComparison(*probes, limit)
        outputs.add(image, "a.jpg")
        return bisect(outputs)

    return run
