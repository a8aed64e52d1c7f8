from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")

from codes.export import Deployed
from codes.network import Network, Plan, SCDown
from torch.utils.flop_counter import FlopCounterMode

PUBLISHED = Path(__file__).parents[4] / "shared" / "models" / "yolov10n-raw.onnx"


def parameter_count(module):
    return sum(part.numel() for part in module.parameters())


def assert_has_gradients(module):
    for part in module.parameters():
        assert part.grad is not None


def assert_has_no_gradients(module):
    for part in module.parameters():
        assert part.grad is None


def flops(deployed, side=640):
    """Two for each multiplication and addition, as the paper counts."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        deployed(torch.zeros(1, 3, side, side))
    return counter.get_total_flops()


def test_yolov10n_has_the_papers_size():
    deployed = Deployed(Network(Plan.nano()))
    assert parameter_count(deployed) == pytest.approx(2.3e6, rel=0.02)
    assert flops(deployed) == pytest.approx(6.7e9, rel=0.02)


@pytest.mark.skipif(not PUBLISHED.exists(), reason=f"{PUBLISHED.name} is not there")
def test_yolov10n_has_the_published_weights_shapes():
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(PUBLISHED).graph
    published = Counter()
    for tensor in graph.initializer:
        if tensor.name.endswith(("weight", "bias")):
            published[tuple(tensor.dims)] += 1
    published[1, 16, 1, 1] -= 1  # the indices of the bins, which are constants here
    ours = Counter()
    for part in Deployed(Network(Plan.nano())).parameters():
        ours[tuple(part.shape)] += 1
    assert ours == +published


def test_the_bundled_variant_stays_narrow():
    deployed = Deployed(Network(Plan.narrow(7)))
    assert parameter_count(deployed) <= 1e6
    assert 1.5e9 <= flops(deployed) <= 3e9


def test_both_heads_answer_for_every_anchor():
    many, one = Network(Plan.narrow(7))(torch.zeros(2, 3, 64, 96))
    anchors = 8 * 12 + 4 * 6 + 2 * 3
    for sides, logits in (many, one):
        assert sides.shape == (2, 64, anchors)
        assert logits.shape == (2, 7, anchors)


def test_the_one_to_one_head_does_not_change_the_features():
    network = Network(Plan.narrow(7))
    _, (sides, logits) = network(torch.rand(1, 3, 64, 64))
    (sides.sum() + logits.sum()).backward()
    assert_has_no_gradients(network.backbone)
    assert_has_no_gradients(network.neck)
    assert_has_gradients(network.one)


def test_the_one_to_many_head_does():
    network = Network(Plan.narrow(7))
    (sides, logits), _ = network(torch.rand(1, 3, 64, 64))
    (sides.sum() + logits.sum()).backward()
    assert_has_gradients(network.backbone)
    assert_has_no_gradients(network.one)


def test_depthwise_convolutions_train_in_float32_and_hand_on_bfloat16():
    block = SCDown(16, 32)
    seen = []
    block.widen.conv.register_forward_hook(lambda _, given, out: seen.append((given, out)))
    block.halve.conv.register_forward_hook(lambda _, given, out: seen.append((given, out)))
    with torch.autocast("cpu", torch.bfloat16):
        out = block(torch.rand(1, 16, 8, 8))
    (_, wide), ((given,), halved) = seen
    assert wide.dtype == out.dtype == torch.bfloat16
    assert given.dtype == halved.dtype == torch.float32
