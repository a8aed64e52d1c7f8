import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")

from codes.loss import CLASS, DISTRIBUTION, Anchors, Objects, dual_loss
from codes.network import BINS, STRIDES, square

GRID = Anchors(*square(64, STRIDES))
COUNT = len(GRID.strides)


def objects(*boxes):
    count = len(boxes)
    zero = torch.zeros(count, dtype=int)
    return Objects(zero, zero, torch.tensor(boxes).reshape(-1, 4))


def test_an_image_without_objects_lowers_every_score():
    silent = (torch.zeros(1, 4 * BINS, COUNT), torch.full((1, 6, COUNT), -20.0))
    loud = (silent[0], torch.zeros(1, 6, COUNT))
    quiet_loss = dual_loss((silent, silent), objects(), GRID)
    loud_loss = dual_loss((loud, loud), objects(), GRID)
    for head in (0, 1):
        assert quiet_loss[head].score == pytest.approx(0, abs=1e-3)
        assert loud_loss[head].score == pytest.approx(CLASS * 6 * COUNT * 0.6931, rel=1e-3)
        assert quiet_loss[head].box == quiet_loss[head].distribution == 0


def test_a_perfect_answer_costs_only_the_entropy_of_the_bins():
    """Sides of 1.5 strides lie between two bins: half each, an entropy of log 2."""
    box = (16.0, 16, 40, 40)  # centre (28, 28) is the middle of the cell in row 3, column 3
    anchor = 3 * 8 + 3
    sides = torch.zeros(1, 4, BINS, COUNT)
    sides[:, :, 1:3, anchor] = 50
    logits = torch.full((1, 6, COUNT), -30.0)
    logits[0, 0, anchor] = 30
    output = (sides.reshape(1, 4 * BINS, COUNT), logits)
    _, one = dual_loss((output, output), objects(box), GRID)
    assert one.box == pytest.approx(0, abs=1e-4)
    assert one.score == pytest.approx(0, abs=1e-4)
    assert one.distribution == pytest.approx(DISTRIBUTION * 0.6931, abs=1e-3)


def test_every_part_reaches_its_branch():
    sides = torch.randn(1, 4 * BINS, COUNT, requires_grad=True)
    logits = torch.randn(1, 6, COUNT, requires_grad=True)
    many, _ = dual_loss(((sides, logits),) * 2, objects((5.0, 5, 50, 40)), GRID)
    many.score.backward()
    assert sides.grad is None
    assert (logits.grad != 0).all()
    (many.box + many.distribution).backward()
    learning = (sides.grad != 0).any(1).sum()  # type: ignore[attr-defined]
    assert learning == 10  # anchors for an object in the one-to-many head
