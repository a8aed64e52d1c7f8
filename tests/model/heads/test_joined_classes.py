"""How many classes a joined head has."""

from graph_builder import Graph

from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.heads.joined_classes import Classes, classes_behind_landmarks


def test_landmarks_are_between_objectness_and_scores_and_none_is_a_probability():
    graph = Graph()
    points, more_points = (graph.flat(graph.convolution(n, 8), n) for n in (4, 6))
    objectness, scores, probabilities = (
        graph("Sigmoid", graph.flat(graph.convolution(n, 8), n)) for n in (1, 3, 6)
    )
    outputs = [points, more_points, objectness, scores, probabilities]
    index = GraphIndex(infer_shapes(graph.model(outputs)).graph)

    groups = [(1, objectness), (4, points), (6, more_points), (3, scores)]
    expected = Classes(3, have_objectness=True, landmark_channels=10)
    assert classes_behind_landmarks(index, groups) == expected

    groups[2] = (6, probabilities)
    assert classes_behind_landmarks(index, groups) is None
