import pytest
from colour_model import picture

from detcli.commands.verify.tensors import OutputComparison, Probe, bisect
from detcli.core.geometry import Picture
from detcli.model.file import ModelFile

RED = Picture.whole(picture(("red", 1, 1), ("blue", 6, 3)))


@pytest.fixture
def bisected(tmp_path):
    """Bisect two models the way `detcli verify` does."""

    def run(left, right, image=RED, size=(64, 64), limit=0.001):
        for name, model in (("a.onnx", left), ("b.onnx", right)):
            (tmp_path / name).write_bytes(model.SerializeToString())
        files = [ModelFile.read(tmp_path / name) for name in ("a.onnx", "b.onnx")]
        at_head = all(file.contract for file in files)
        probes = [Probe(file, size, at_head=at_head) for file in files]
        outputs = OutputComparison(*probes, limit)
        outputs.add(image, "a.jpg")
        return bisect(outputs)

    return run
