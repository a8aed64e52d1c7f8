import functools

import pytest
from colour_model import build, image
from damaged_graphs import swapped
from saved_records import report_of
from verify_requests import probe

from detcli.commands.verify.bisection import bisect
from detcli.commands.verify.tensors import OutputComparison
from detcli.data.geometry import Image
from detcli.model.file import ModelFile

RED = Image.whole(image(("red", 1, 1), ("blue", 6, 3)))


@pytest.fixture
def verify(invoke):
    return functools.partial(invoke, "verify")


@pytest.fixture
def reports(verify):
    """Run verify, which ends with a code: its report."""

    def run(code, *arguments):
        completed = verify(arguments)
        assert completed.returncode == code, completed.stderr
        return report_of(completed)

    return run


@pytest.fixture
def compared_images(make_image, tmp_path):
    make_image("pics/a.png", ("red", 1, 1))
    make_image("pics/b.png", ("red", 2, 2), ("blue", 5, 5))
    return tmp_path / "pics"


@pytest.fixture
def broken(tmp_path):
    """A model that reads a subtraction the wrong way round."""
    path = tmp_path / "broken.onnx"
    path.write_bytes(swapped(build(), "low").SerializeToString())
    return path


@pytest.fixture
def bisected(tmp_path):
    """Bisect two models the way `detcli verify` does."""

    def run(left, right, image=RED, size=(64, 64), limit=0.001):
        left_path = tmp_path / "a.onnx"
        right_path = tmp_path / "b.onnx"
        left_path.write_bytes(left.SerializeToString())
        right_path.write_bytes(right.SerializeToString())
        contracts = (ModelFile.read(left_path).contract, ModelFile.read(right_path).contract)
        at_head = None not in contracts
        left_probe = probe(left_path, size=size, at_head=at_head)
        right_probe = probe(right_path, size=size, at_head=at_head)
        outputs = OutputComparison(left_probe, right_probe, limit)
        outputs.add(image, "a.jpg")
        return bisect(outputs)

    return run
