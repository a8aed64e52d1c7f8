import copy
import dataclasses
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")
pytest.importorskip("onnxscript", reason="onnxscript is not installed; it is in the extra `train`")
pytest.importorskip("skimage", reason="scikit-image is not installed; it is in the extra `train`")
pytest.importorskip("sklearn", reason="scikit-learn is not installed; it is in the extra `train`")
pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra `train`")
pytest.importorskip("zxingcpp", reason="zxing-cpp is not installed; it is in the extra `train`")

from codes import average
from codes.export import export, trained
from codes.network import Network, Plan
from codes.symbols import NAMES
from codes.train import LAST, Settings, train

SHORT = Settings(steps=2, warmup_steps=1, lr_decay_steps=1, batch_size=4, imgsz=96, workers=0)


def network(seed):
    torch.manual_seed(seed)
    return Network(Plan.narrow(len(NAMES)))


def test_weights_lie_between_and_statistics_are_those_of_all_batches():
    first, last = network(1), network(2)
    batches = list(torch.randint(0, 256, (3, 2, 3, 64, 64), dtype=torch.uint8))
    mean = average.averaged(copy.deepcopy(first), last, 0.25, batches)
    assert not mean.training
    layer, ours, theirs = (part.backbone.to8[0] for part in (mean, first, last))
    expected = 0.75 * ours.conv.weight + 0.25 * theirs.conv.weight
    torch.testing.assert_close(layer.conv.weight, expected)
    with torch.no_grad():
        outputs = layer.conv(torch.cat(batches).float() / 255)
    torch.testing.assert_close(layer.norm.running_mean, outputs.mean((0, 2, 3)))


def test_a_run_is_averaged_with_the_file_that_it_started_from(tmp_path, monkeypatch):
    start = tmp_path / "start.onnx"
    first = train(SHORT, tmp_path / "first", torch.device("cpu")).average
    with pytest.warns() as _:  # the exporter of this torch still uses what its next version drops
        export(first, start, {})
    train(dataclasses.replace(SHORT, start=str(start)), tmp_path, torch.device("cpu"))
    monkeypatch.setattr(average, "BATCHES", 2)
    found = []
    for share in ("0", "0.5", "1"):
        output = tmp_path / f"{share}.pt"
        monkeypatch.setattr(
            sys, "argv", ["average", str(tmp_path / LAST), str(output), "--share", share]
        )
        average.main()
        found.append(trained(output).one.box[0][2].weight)
    torch.testing.assert_close(found[0], first.one.box[0][2].weight)
    torch.testing.assert_close(found[1], (found[0] + found[2]) / 2)
    torch.testing.assert_close(found[2], trained(tmp_path / LAST).one.box[0][2].weight)
    assert not torch.equal(found[0], found[2])


def test_a_run_from_nothing_has_nothing_to_be_averaged_with(tmp_path, monkeypatch, capsys):
    train(dataclasses.replace(SHORT, steps=1), tmp_path, torch.device("cpu"))
    monkeypatch.setattr(sys, "argv", ["average", str(tmp_path / LAST), str(tmp_path / "mean.pt")])
    with pytest.raises(SystemExit):
        average.main()
    assert "started from nothing" in capsys.readouterr().err
