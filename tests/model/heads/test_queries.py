"""What the queries of a DETR begin with."""

import pytest
from graph_builder import Graph
from head_checks import file_of
from head_graphs import model_of
from query_graphs import chosen, refined

from detcli.core.errors import ModelError
from detcli.model.contract import Resize
from detcli.model.graph import GraphIndex
from detcli.model.heads import Queries
from detcli.model.heads.queries import queries_of
from detcli.model.preprocessing import PREPROCESSING_STEPS

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_a_choice_of_constants_is_none_of_maps():
    graph = Graph()
    learnt = graph.constant(graph.weights(1, 24, 8))
    boxes = graph("Add", chosen(graph, learnt), graph.queries())
    assert queries_of(GraphIndex(graph.model([boxes]).graph), boxes) is Queries.ENCODED


def preprocessing_of(name):
    model, _ = model_of(name, 3)
    contract = file_of(model).contract
    return contract.preprocessing, contract.unknown_preprocessing


@pytest.mark.parametrize(
    "name", ["Conditional DETR", "Conditional DETR, folded", "Deformable DETR"]
)
def test_detrs_whose_boxes_are_refined_as_rt_detrs_get_mean_and_deviation(name):
    rule, unsettled = preprocessing_of(name)
    assert (rule.mean, rule.std) == IMAGENET
    assert not unsettled


@pytest.mark.parametrize("name", ["RT-DETR", "RT-DETR joined", "RT-DETR deployed", "Paddle"])
def test_rt_detr_gets_none(name):
    rule, unsettled = preprocessing_of(name)
    assert rule.resize == Resize.STRETCH
    assert rule.mean == (0, 0, 0)
    assert not unsettled


def test_a_transformer_for_a_backbone_is_seen_by_its_patches():
    assert preprocessing_of("DEIMv2")[0].mean == IMAGENET[0]
    assert preprocessing_of("D-FINE")[0].mean == (0, 0, 0)
    assert preprocessing_of("RT-DETR, patches")[1] == tuple(PREPROCESSING_STEPS)


def test_a_softmax_has_no_place_among_refined_boxes():
    graph = Graph()
    features = chosen(graph)
    shares = graph("Softmax", graph.linear(features, 8, 4), axis=2)
    model = graph.model([shares, refined(graph, features)])
    with pytest.raises(ModelError, match="no family is known"):
        file_of(model).detector()
