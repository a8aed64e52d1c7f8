from dataclasses import replace

import numpy as np
import pytest
from comparisons import random_pictures
from hypothesis import given
from hypothesis import strategies as st

from detcli.commands.eval.curves import Curve
from detcli.commands.eval.evaluator import Found
from detcli.commands.eval.metrics import Ranking, score

RANKINGS = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12).map(
        lambda rows: Ranking(
            np.array([value / 10 for value, _ in sorted(rows, reverse=True)]),
            np.array([hit for _, hit in sorted(rows, reverse=True)], np.bool_),
            sum(hit for _, hit in rows) + 2,
        )
    ),
    min_size=1,
    max_size=3,
)


@given(RANKINGS, st.floats(0, 1))
def test_counts_above_a_confidence(rankings, confidence):
    curve = Curve.of(rankings)
    above = [
        hit
        for one in rankings
        for value, hit in zip(one.score, one.hit, strict=True)
        if value > confidence
    ]
    assert curve.counts(confidence) == (sum(above), len(above) - sum(above))
    assert curve.boxes == sum(one.boxes for one in rankings)
    assert (np.diff(curve.score) < 0).all()


def test_precision_recall_and_f1():
    curve = Curve.of([Ranking(np.array([0.9, 0.8, 0.8, 0.1]), np.array([1, 0, 1, 0], bool), 4)])
    assert curve.score.tolist() == [0.9, 0.8, 0.1]
    assert curve.precision.tolist() == pytest.approx([1, 2 / 3, 1 / 2])
    assert curve.recall.tolist() == [0.25, 0.5, 0.5]
    assert curve.f1.tolist() == pytest.approx([0.4, 4 / 7, 0.5])


def test_nothing_found():
    curve = Curve.of([Ranking(np.zeros(0), np.zeros(0, np.bool_), 3)])
    assert len(curve.f1) == 0
    assert curve.counts(0) == (0, 0)


@pytest.mark.parametrize("confidence", [0.2, 0.5, 0.77])
def test_one_pass_with_a_low_confidence_tells_about_all_higher_ones(confidence, random):
    pictures = random_pictures(random, 60)

    def above(found):
        kept = found.score > confidence
        return Found(found.boxes[kept], found.score[kept], found.category[kept])

    strict = score([replace(one, found=above(one.found)) for one in pictures], range(3))
    for number, ranking in score(pictures, range(3)).rankings.items():
        hits, alarms = Curve.of([ranking]).counts(confidence)
        again = strict.rankings[number]
        assert (hits, alarms) == (again.hit.sum(), (~again.hit).sum())
        assert hits
        assert alarms
