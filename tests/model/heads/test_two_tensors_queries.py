"""What the queries of a DETR begin with."""

import pytest
from graph_builder import Graph
from head_checks import file_of
from head_graphs import model_of
from query_graphs import chosen, encoded, refined

from detcli.core.errors import ModelError
from detcli.model.contract import Resize
from detcli.model.graph import GraphIndex
from detcli.model.heads.decode import Queries
from detcli.model.heads.two_tensors import has_patches, queries_of

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def index_of(begin, output="Identity"):
    graph = Graph()
    boxes = graph(output, begin(graph))
    return GraphIndex(graph.model([boxes]).graph), boxes


@pytest.mark.parametrize(
    ("begin", "queries"),
    [(Graph.queries, Queries.LEARNT), (chosen, Queries.MAPS), (encoded, Queries.ENCODED)],
)
def test_queries_are_told_apart_by_what_they_begin_with(begin, queries):
    assert queries_of(*index_of(begin)) is queries


def test_a_choice_of_constants_is_none_of_maps():
    graph = Graph()
    learnt = graph.constant(graph.weights(1, 24, 8))
    boxes = graph("Add", chosen(graph, learnt), graph.queries())
    assert queries_of(GraphIndex(graph.model([boxes]).graph), boxes) is Queries.ENCODED


@pytest.mark.parametrize(("begin", "patches"), [(Graph.queries, False), (Graph.patches, True)])
def test_patches_are_seen_by_the_convolution_that_cuts_them(begin, patches):
    assert has_patches(index_of(begin)[0]) is patches


def preprocessing_of(name):
    model, _ = model_of(name, 3)
    contract = file_of(model).contract
    return contract.preprocessing, contract.unsettled


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
    assert (rule.resize, rule.mean) == (Resize.STRETCH, (0, 0, 0))
    assert not unsettled


def test_deimv2_on_a_transformer_is_fed_otherwise_than_d_fine():
    assert (preprocessing_of("DEIMv2")[0].mean, preprocessing_of("D-FINE")[0].mean) == (
        IMAGENET[0],
        (0, 0, 0),
    )


def test_refined_boxes_of_an_unknown_backbone_leave_the_preprocessing_open():
    assert preprocessing_of("RT-DETR, patches")[1] == (
        "resize",
        "interpolation",
        "values",
        "channels",
    )


def test_a_softmax_has_no_place_among_refined_boxes():
    graph = Graph()
    features = chosen(graph)
    parts = {"logits": graph("Softmax", graph.linear(features, 8, 4), axis=2)}
    model = graph.model([*parts.values(), refined(graph, features)])
    with pytest.raises(ModelError, match="no family is known"):
        file_of(model).detector()
