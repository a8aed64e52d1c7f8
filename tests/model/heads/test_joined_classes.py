"""How many classes a joined head has."""

import numpy as np
import pytest
from graph_builder import Graph
from query_heads import index_of

from detcli.config.values import BoxFormat
from detcli.model.heads import BoxDecode, Decoded, Unrecognised
from detcli.model.heads.joined_classes import (
    Classes,
    classes_after_boxes,
    classes_after_landmarks,
    is_multiplied,
)


def test_landmarks_are_between_objectness_and_scores_and_none_is_a_probability():
    graph = Graph()
    objectness = (1, probabilities(graph, 1))
    points = (4, plain_numbers(graph, 4))
    more_points = (6, plain_numbers(graph, 6))
    scores = (3, probabilities(graph, 3))
    six_probabilities = (6, probabilities(graph, 6))
    index = index_of_groups(graph, [objectness, points, more_points, scores, six_probabilities])

    expected = Classes(3, have_objectness=True, landmark_channels=10)
    assert classes_after_landmarks(index, [objectness, points, more_points, scores]) == expected
    assert classes_after_landmarks(index, [objectness, points, six_probabilities, scores]) is None


def probabilities(graph, count):
    """Numbers from 0 to 1 for each cell, `[B, count, N]`."""
    return graph("Sigmoid", plain_numbers(graph, count))


def plain_numbers(graph, count):
    """Numbers as a layer leaves them."""
    return graph.flat_convolution(count)


def index_of_groups(graph, groups):
    """The index of a graph that ends in the tensors of these groups."""
    tensors = [tensor for _, tensor in groups]
    return index_of(graph, tensors)


def parts_of(graph, counts_and_kinds):
    """The tensors of the parts behind a box, each with the number of its channels."""
    return [(count, kind(graph, count)) for count, kind in counts_and_kinds]


def decoded_by(method):
    return Decoded(method, BoxFormat.CXCYWH)


@pytest.mark.parametrize(
    ("parts", "classes"),
    [
        ([(1, probabilities), (3, probabilities)], Classes(3, have_objectness=True)),
        ([(2, probabilities), (3, probabilities)], None),
        ([(1, plain_numbers), (3, probabilities)], None),
        ([(1, probabilities), (3, plain_numbers)], None),
        ([(1, probabilities), (3, probabilities), (2, probabilities)], None),
    ],
)
def test_an_objectness_is_one_probability_before_those_of_the_classes(parts, classes):
    graph = Graph()
    groups = parts_of(graph, parts)
    assert classes_after_boxes(index_of_groups(graph, groups), None, groups) == classes


@pytest.mark.parametrize(
    "parts",
    [
        [(2, probabilities), (10, plain_numbers), (3, probabilities)],
        [(1, plain_numbers), (10, plain_numbers), (3, probabilities)],
        [(1, probabilities), (10, plain_numbers), (3, plain_numbers)],
        [(1, probabilities), (9, plain_numbers), (3, probabilities)],
        [(1, probabilities), (11, plain_numbers), (3, probabilities)],
        [(1, probabilities), (3, probabilities)],
        [(1, probabilities)],
    ],
)
def test_other_parts_are_no_landmarks_between_objectness_and_classes(parts):
    graph = Graph()
    groups = parts_of(graph, parts)
    assert classes_after_landmarks(index_of_groups(graph, groups), groups) is None


@pytest.mark.parametrize(
    ("method", "kind", "classes"),
    [
        (BoxDecode.GRID, probabilities, Classes(3, have_objectness=True)),
        (BoxDecode.EXPONENTIAL, probabilities, Classes(3, have_objectness=True)),
        (BoxDecode.GRID, plain_numbers, Classes(4, have_objectness=False)),
        (BoxDecode.DISTANCES, probabilities, Classes(4, have_objectness=False)),
    ],
)
def test_the_first_score_of_a_detector_with_anchor_boxes_is_an_objectness(method, kind, classes):
    graph = Graph()
    groups = parts_of(graph, [(4, kind)])
    index = index_of_groups(graph, groups)
    assert classes_after_boxes(index, decoded_by(method), groups) == classes


def test_all_scores_are_of_classes_if_an_objectness_was_multiplied_into_them():
    graph = Graph()
    scores = graph("Mul", probabilities(graph, 3), probabilities(graph, 1))
    groups = [(3, scores)]
    index = index_of_groups(graph, groups)
    assert is_multiplied(index, scores)
    expected = Classes(3, have_objectness=False)
    assert classes_after_boxes(index, decoded_by(BoxDecode.GRID), groups) == expected


def test_scores_of_an_unknown_activation_may_begin_with_an_objectness():
    graph = Graph()
    groups = [(4, graph("Relu", plain_numbers(graph, 4)))]
    index = index_of_groups(graph, groups)
    with pytest.raises(Unrecognised, match="whether its scores begin with an objectness"):
        classes_after_boxes(index, decoded_by(BoxDecode.GRID), groups)


def test_beside_distances_an_objectness_is_a_constant():
    """As in YOLOv6; what a layer gives there may be anything."""
    graph = Graph()
    constant = graph.constant(np.ones((1, 1, 96), np.float32))
    scores = (3, probabilities(graph, 3))
    computed = (1, probabilities(graph, 1))
    index = index_of_groups(graph, [computed, scores])
    distances = decoded_by(BoxDecode.DISTANCES)
    expected = Classes(3, have_objectness=True)
    assert classes_after_boxes(index, distances, [(1, constant), scores]) == expected
    with pytest.raises(Unrecognised, match="what the number between its boxes and scores is"):
        classes_after_boxes(index, distances, [computed, scores])
