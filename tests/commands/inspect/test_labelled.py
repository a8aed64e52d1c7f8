"""Ways of reading a model, ranked by mAP on labelled pictures."""

import json

import onnx
import pytest
import seeker_model
from labelled import write_json
from seeker_model import IMAGENET, SIDE, SQUARE

from detcli.commands.inspect.labelled import MOST, Labelled
from detcli.commands.inspect.trial import Trial
from detcli.errors import SourceError, UsageError
from detcli.model.zoo import find


@pytest.fixture
def data(tmp_path, random):
    """Labelled pictures: what the seeker finds, in COCO's form."""

    def make(count=8):
        corners = seeker_model.write_pictures(tmp_path / "images", random, count)
        return write_json(
            tmp_path / "instances.json",
            {
                "images": [
                    {"id": n, "file_name": f"{n}.png", "width": SIDE, "height": SIDE}
                    for n in range(count)
                ],
                "categories": [{"id": 1, "name": "red"}, {"id": 2, "name": "green"}],
                "annotations": [
                    {"id": n, "image_id": n, "category_id": 1, "bbox": [x, y, SQUARE, SQUARE],
                     "area": SQUARE**2, "iscrowd": 0}
                    for n, (x, y) in enumerate(corners)
                ],
            },
        )  # fmt: skip

    return make


@pytest.fixture
def plan(tmp_path):
    onnx.save_model(seeker_model.build(IMAGENET, bgr=True), tmp_path / "seeker.onnx")
    return Trial.plan(find(str(tmp_path / "seeker.onnx")), "cpu", None, ["values", "channels"])


def test_the_truth_is_found(plan, data):
    evidence = Labelled.open(data(), None, None, plan.contract)
    report = plan.run(evidence)
    assert [one.found for one in report.parts] == ["ImageNet's mean and std", "bgr"]
    assert report.method == "mAP"
    assert report.pictures == tuple(f"{n}.png" for n in range(8))
    best = report.candidates[0]
    assert best.rank == max(one.rank for one in report.candidates) > 0
    assert best.confirmed is None


def test_the_figure_is_that_of_eval(plan, data, invoke, tmp_path):
    path = data()
    best = plan.run(Labelled.open(path, None, None, plan.contract)).candidates[0]
    done = invoke(
        *("eval", tmp_path / "seeker.onnx", "--data", path, "--device", "cpu"),
        *("--preprocess", best.preprocess),
    )
    assert json.loads(done.stdout)["metrics"]["map50_95"] == pytest.approx(best.rank, abs=1e-4)


def test_few_pictures_decide_nothing(plan, data):
    report = plan.run(Labelled.open(data(4), None, None, plan.contract))
    assert [one.found for one in report.parts] == [None, None]
    assert report.parts[0].best == "ImageNet's mean and std"


def test_pictures_are_spread_over_the_data_and_have_labels(plan, data):
    path = data(MOST + 20)
    content = json.loads(path.read_text())
    content["annotations"] = content["annotations"][:-10]
    path.write_text(json.dumps(content))
    evidence = Labelled.open(path, None, None, plan.contract)
    assert len(evidence.pictures) == MOST
    assert evidence.pictures[0] == "0.png"
    assert evidence.pictures[-1] == f"{MOST + 9}.png"


def test_unreadable_pictures_are_left_out_and_named(plan, data):
    path = data(3)
    images = path.parent / "images"
    (images / "0.png").write_bytes(b"no picture")
    (images / "2.png").unlink()
    evidence = Labelled.open(path, None, None, plan.contract)
    assert evidence.pictures == ("1.png",)
    assert [one.source for one in evidence.failed] == ["0.png", "2.png"]
    (images / "1.png").write_bytes(b"")
    with pytest.raises(SourceError, match="no picture could be read"):
        Labelled.open(path, None, None, plan.contract)


def test_data_that_cannot_be_used(plan, data, tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        Labelled.open(tmp_path / "none.json", None, None, plan.contract)
    path = data(2)
    content = json.loads(path.read_text())
    content["categories"] = [{"id": 1, "name": "zebra"}]
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="no name in common"):
        Labelled.open(path, None, None, plan.contract)
