"""The arithmetic of a Softmax, and what only looks like it."""

import numpy as np
import pytest
from graph_builder import Graph
from head_checks import IMAGE, run

from detcli.model.softmax_nodes import restore_softmax


def with_division(*, opset=17, axis=1, axis_of_maximum=1, keeps_axis=1):
    """Logits less their maximum, to exponentials, divided by the sum of these."""
    graph = Graph(opset=opset)
    logits = graph.convolution(8, 8)
    maximum = graph("ReduceMax", logits, axes=[axis_of_maximum])
    exponential = graph("Exp", graph("Sub", logits, maximum))
    if opset < 13:
        total = graph("ReduceSum", exponential, axes=[axis], keepdims=keeps_axis)
    else:
        total = graph("ReduceSum", exponential, [axis], keepdims=keeps_axis)
    return graph.model([graph("Div", exponential, total)])


@pytest.mark.parametrize("axis", [1, -1])
def test_the_arithmetic_becomes_a_softmax_that_gives_the_same(axis):
    model = with_division(axis=axis, axis_of_maximum=axis)
    (expected,) = run(model, IMAGE)
    assert restore_softmax(model, 17)
    assert model.graph.node[-1].op_type == "Softmax"
    (shares,) = run(model, IMAGE)
    np.testing.assert_allclose(shares, expected, atol=1e-6)


def test_the_maximum_over_another_axis_stays():
    model = with_division(axis_of_maximum=2)
    (expected,) = run(model, IMAGE)
    restore_softmax(model, 17)
    (shares,) = run(model, IMAGE)
    np.testing.assert_allclose(shares, expected, atol=1e-6)


def test_a_sum_without_its_axis_is_left_alone():
    assert not restore_softmax(with_division(axis=2, keeps_axis=0), 17)


def test_an_old_softmax_would_go_over_all_axes_behind_its_own():
    assert not restore_softmax(with_division(opset=11, axis=1), 11)
    assert restore_softmax(with_division(opset=11, axis=-1, axis_of_maximum=-1), 11)
