import dataclasses

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")
pytest.importorskip("onnxscript", reason="onnxscript is not installed; it is in the extra `train`")

import numpy as np
import onnx
import onnxruntime
from codes.export import (
    CONF,
    CONFS,
    Deployed,
    describe,
    distinct,
    export,
    folded,
    peaks,
    restore,
)
from codes.network import PRIOR, STRIDES, C2f, Network, Plan, decode_boxes, square
from codes.symbols import NAMES

from detcli.config.values import BoxFormat
from detcli.model.contract import Layout, Preprocessing
from detcli.model.recognise import read_graph

SIDE = 96


@pytest.fixture(scope="module")
def network():
    """A network whose batch normalisation has statistics, so that folding has something to do."""
    torch.manual_seed(0)
    new_network = Network(Plan.narrow(len(NAMES)))
    with torch.no_grad():
        for _ in range(3):
            new_network(torch.rand(4, 3, SIDE, SIDE))
        for module in new_network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.5, 0.5)
        for branch in new_network.one.score:
            last_convolution = branch[-1]
            last_convolution.weight.normal_(0, 2)  # scores differ from cell to cell
            last_convolution.bias.normal_()  # and from scale to scale
    return new_network.eval()


@pytest.fixture(scope="module")
def exported(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "codes.onnx"
    # The exporter of this torch still uses what its own next version will drop.
    with pytest.warns() as _:
        export(network, path, describe(7))
    return path


@pytest.fixture(scope="module")
def images():
    return torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def test_folding_keeps_the_output(network, images):
    before = network.one(network.features(images))
    folded_network = folded(network)
    after = folded_network.one(folded_network.features(images))
    for module in folded_network.modules():
        assert not isinstance(module, torch.nn.BatchNorm2d)
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new, old, atol=1e-4, rtol=1e-4)


def test_the_body_is_boxes_in_pixels_and_scores(network, images):
    sides, logits = network.one(network.features(images))
    centres, sizes = square(SIDE, STRIDES)
    boxes = decode_boxes(sides, centres, sizes)
    body = Deployed(network)(images)
    torch.testing.assert_close(body[:, :4], boxes, atol=1e-3, rtol=1e-4)
    scores, kept = logits.sigmoid(), body[:, 4:] > 0
    assert (body[:, 4:] >= (scores * kept).clamp(max=1) - 1e-3).all()
    best = scores.amax(1)[0]  # [N]
    assert kept[0, :, best.argmax()].all()
    assert 0.05 < kept.float().mean() < 0.4  # about one in nine


def test_of_adjacent_cells_the_best_answers_for_all():
    scores = torch.zeros(1, 2, 4, 6)
    scores[0, 0, 1, 1] = 0.6
    scores[0, 1, 1, 1] = 0.1  # the second class of the best cell
    scores[0, 1, 2, 2] = 0.5  # of another class, next to it
    scores[0, 0, 1, 2] = 0.2
    scores[0, 0, 1, 3] = 0.4  # next to the third only
    scores[0, 0, 3, 5] = 0.7
    expected = torch.zeros_like(scores)
    expected[0, :, 1, 1] = torch.tensor([0.8, 0.6])
    expected[0, 0, 3, 5] = 0.7
    torch.testing.assert_close(peaks(scores), expected)
    flat = torch.full((1, 2, 3, 3), 0.5)
    assert peaks(flat)[0, 0, 1, 1] == 1  # not 4.5


def cells_that_answer(fine, coarse):
    """Run `distinct` on two scales, and return the cells that still have a score after it.

    Args:
        fine: Box and score by (row, column), on a grid of 6 x 8 cells.
        coarse: The same on a grid of 3 x 4 cells.

    Returns:
        The cells (row, column) of the fine and of the coarse scale.
    """
    fine_boxes, fine_scores = grid_of(fine, rows=6, columns=8)
    coarse_boxes, coarse_scores = grid_of(coarse, rows=3, columns=4)
    fine_after, coarse_after = distinct(
        fine_boxes, coarse_boxes, fine_scores, coarse_scores, reach=1
    )
    for before, after in ((fine_scores, fine_after), (coarse_scores, coarse_after)):
        assert ((after == before) | (after == 0)).all()
    return [scoring_cells(fine_after), scoring_cells(coarse_after)]


def grid_of(answers, rows, columns):
    """Boxes `[1, 4, H, W]` and scores `[1, 2, H, W]`, of the second class, by (row, column)."""
    boxes = torch.zeros(1, 4, rows, columns)
    scores = torch.zeros(1, 2, rows, columns)
    for (row, column), (box, score) in answers.items():
        boxes[0, :, row, column] = torch.tensor(box, dtype=torch.float32)
        scores[0, 1, row, column] = score
    return boxes, scores


def scoring_cells(scores):
    return {(row, column) for row, column in torch.nonzero(scores[0, 1]).tolist()}


def test_of_cells_that_find_a_symbol_the_best_answers():
    box, shifted, other = [8, 8, 28, 28], [9, 8, 28, 29], [12, 16, 40, 28]
    for row, column in ((2, 3), (3, 3), (2, 4), (3, 2)):  # each corner of a coarse cell
        for cell in ((1, 1), (row // 2 - 1, column // 2), (row // 2 + 1, column // 2 + 1)):
            cells = {(row, column)}, {cell}
            for ours, theirs, kept in (
                ((box, 0.9), (shifted, 0.8), (cells[0], set())),
                ((box, 0.7), (shifted, 0.8), (set(), cells[1])),
                ((box, 0.9), (other, 0.8), cells),
            ):
                assert cells_that_answer({(row, column): ours}, {cell: theirs}) == list(kept)
    apart = {(2, 2): (box, 0.9), (2, 5): (shifted, 0.8), (5, 0): (other, 0.7)}
    assert cells_that_answer(apart, {}) == [{(2, 2), (5, 0)}, set()]  # in one scale, too
    assert cells_that_answer({}, {(0, 0): (box, 0.7), (1, 1): (shifted, 0.8)}) == [set(), {(1, 1)}]
    fine, coarse = {(5, 7): (box, 0.9)}, {(0, 0): (box, 0.8)}  # far from each other
    assert cells_that_answer(fine, coarse) == [{(5, 7)}, {(0, 0)}]


def test_one_coarse_answer_outdoes_several_fine_ones():
    box = [8, 8, 28, 28]
    fine = {(2, 2): (box, 0.5), (2, 4): (box, 0.6), (4, 2): ([0, 0, 9, 9], 0.1)}
    assert cells_that_answer(fine, {(1, 1): (box, 0.7)}) == [{(4, 2)}, {(1, 1)}]
    assert cells_that_answer(fine, {(1, 1): (box, 0.55)}) == [{(2, 4), (4, 2)}, set()]


def test_the_graph_matches_torch(network, exported, images):
    session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    images = images.repeat(1, 1, 1, 2)  # twice as wide as high
    (body,) = session.run(None, {"images": images.numpy()})
    expected = Deployed(network)(images).numpy()
    assert body.shape == (1, 4 + len(NAMES), 2 * (12 * 12 + 6 * 6 + 3 * 3))
    answers, wanted = body[:, 4:].any(1), expected[:, 4:].any(1)
    agreed = (answers == wanted)[:, None]  # rounding decides between equally good neighbours
    assert agreed.mean() > 0.9
    np.testing.assert_allclose(body[:, 4:] * agreed, expected[:, 4:] * agreed, atol=1e-4)
    np.testing.assert_allclose(body[:, :4], expected[:, :4], atol=1e-4 * SIDE)


def test_restored_weights_answer_as_the_file_does(network, exported, images):
    restored = Network(Plan.narrow(len(NAMES)))
    restore(restored, exported, torch.rand(2, 3, SIDE, SIDE))
    assert restored.training
    for head in (restored.one, restored.many):
        restored.one = head
        ours, theirs = folded(restored), folded(network)
        sides, logits = ours.one(ours.features(images))
        expected_sides, expected_logits = theirs.one(theirs.features(images))
        torch.testing.assert_close(sides, expected_sides, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(logits, expected_logits, atol=1e-3, rtol=1e-3)


def test_blocks_that_the_file_lacks_change_nothing_until_they_are_trained(
    network, exported, images
):
    more = tuple(count + 1 for count in network.plan.repeats)
    deeper = Network(dataclasses.replace(network.plan, repeats=more))
    restore(deeper, exported, torch.rand(2, 3, SIDE, SIDE))
    _, ours = folded(deeper).one(folded(deeper).features(images))
    _, theirs = folded(network).one(folded(network).features(images))
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
    optimiser = torch.optim.SGD(deeper.parameters(), lr=0.1)
    for _ in range(3):  # what follows them learns first, their first convolutions last
        optimiser.zero_grad()
        deeper(torch.rand(2, 3, SIDE, SIDE))[0][1].square().mean().backward()
        optimiser.step()
    for layer in deeper.backbone.modules():
        if isinstance(layer, C2f):
            for part in layer.blocks[-1].parameters():
                assert part.grad.abs().max() > 0


def test_a_class_that_the_file_lacks_starts_untrained(exported):
    restored = Network(Plan.narrow(len(NAMES) + 1))
    restore(restored, exported, torch.rand(2, 3, SIDE, SIDE))
    _, logits = restored.eval().one(restored.features(torch.rand(1, 3, SIDE, SIDE)))
    torch.testing.assert_close(logits[:, -1].sigmoid(), torch.full_like(logits[:, -1], PRIOR))
    assert logits[:, :-1].std() > 0.1


def test_detcli_recognises_it(exported):
    contract = read_graph(onnx.shape_inference.infer_shapes(onnx.load(exported)), "codes").contract
    assert contract.layout is Layout.BODY
    assert contract.box_format is BoxFormat.XYXY
    assert contract.names == NAMES
    assert contract.input_size is contract.batch is None
    assert contract.default_size == (640, 640)
    assert contract.warnings == ()
    assert contract.conf == CONF
    assert contract.class_conf == tuple(enumerate(CONFS[name] for name in NAMES))
    assert str(contract.tile) == "1024,overlap=0.2,crowd=10"
    assert contract.preprocessing == Preprocessing(enlarge=1)


def test_the_file_contains_no_paths(exported):
    model = onnx.load(exported)
    assert [opset.version for opset in model.opset_import if not opset.domain] == [18]
    assert b".py" not in exported.read_bytes()
    assert exported.stat().st_size < 4e6
