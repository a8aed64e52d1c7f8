"""Graphs that cannot be walked are refused, whatever follows; all others are left alone."""

import colour_model
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from detcli.core.errors import ModelError
from detcli.model import graph as structure
from detcli.model.file import load
from detcli.model.graph import check_structure

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def model_of(*nodes, functions=()):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph(nodes, "graph", [x], [y])
    return helper.make_model(graph, opset_imports=OPSETS, functions=list(functions))


def function(name, *nodes):
    return helper.make_function("own", name, ["a"], ["b"], list(nodes), OPSETS)


def call(name, source="a", made="b"):
    return helper.make_node(name, [source], [made], domain="own")


def branch(*nodes, output="y"):
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, [2])
    return helper.make_graph(nodes, "branch", [], [made])


def passing(source, made):
    return helper.make_node("Identity", [source], [made])


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_a_detector_is_left_alone(tail):
    check_structure(colour_model.build(tail))


def test_the_order_of_nodes_does_not_matter():
    check_structure(model_of(passing("b", "y"), passing("a", "b"), passing("x", "a")))


def test_a_branch_may_make_what_its_node_makes():
    inner = branch(passing("x", "y"))
    node = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    check_structure(model_of(node))


def test_optional_outputs_have_no_name():
    nodes = [helper.make_node("TopK", ["x", "x"], ["", name]) for name in "yz"]
    check_structure(model_of(*nodes))


CIRCLES = {
    "one node": [passing("y", "y")],
    "two nodes": [passing("a", "y"), passing("y", "a")],
    "beside the path": [passing("x", "y"), passing("b", "a"), passing("a", "b")],
    "through a branch": [
        helper.make_node("If", ["x"], ["y"], then_branch=branch(passing("z", "w"), output="w")),
        passing("y", "z"),
    ],
    "in a branch": [
        helper.make_node(
            "If", ["x"], ["y"], then_branch=branch(passing("y", "w"), passing("w", "y"))
        )
    ],
}


@pytest.mark.parametrize("nodes", CIRCLES.values(), ids=CIRCLES)
def test_nodes_in_a_circle_are_refused(nodes):
    with pytest.raises(ValueError, match="nodes form a circle"):
        check_structure(model_of(*nodes))


def test_two_nodes_with_the_same_output_are_refused():
    with pytest.raises(ValueError, match="two nodes make y"):
        check_structure(model_of(passing("x", "y"), passing("x", "y")))


@pytest.mark.parametrize(
    "functions",
    [
        [function("F", call("F"))],
        [function("F", call("G")), function("G", call("F"))],
        [
            function(
                "F", helper.make_node("If", ["a"], ["b"], then_branch=branch(call("F", "a", "y")))
            )
        ],
    ],
)
def test_functions_that_call_themselves_are_refused(functions):
    with pytest.raises(ValueError, match="functions call each other"):
        check_structure(model_of(call("F", "x", "y"), functions=functions))


def test_a_function_that_is_defined_twice_is_refused():
    twice = [function("F", passing("a", "b"))] * 2
    with pytest.raises(ValueError, match="F is defined twice"):
        check_structure(model_of(call("F", "x", "y"), functions=twice))


def chain_of_functions(depth):
    """Each calls the one before it twice."""
    functions = [function("F0", passing("a", "b"))]
    for number in range(depth):
        before = f"F{number}"
        nodes = call(before, "a", "c"), call(before, "c", "b")
        functions.append(function(f"F{number + 1}", *nodes))
    return model_of(call(f"F{depth}", "x", "y"), functions=functions)


def test_functions_count_wherever_they_are_called():
    check_structure(chain_of_functions(10))
    with pytest.raises(ValueError, match="more than 20000 nodes"):
        check_structure(chain_of_functions(60))


def test_calls_may_be_nested_fifty_deep():
    first = function("F0", passing("a", "b"))
    functions = [first, *(function(f"F{n + 1}", call(f"F{n}")) for n in range(50))]
    check_structure(model_of(call("F49", "x", "y"), functions=functions[:50]))
    with pytest.raises(ValueError, match="50 deep"):
        check_structure(model_of(call("F50", "x", "y"), functions=functions))


def test_nodes_in_branches_count(monkeypatch):
    inner = branch(passing("x", "a"), passing("a", "y"))
    model = model_of(helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner))
    monkeypatch.setattr(structure, "MAX_NODES", 5)
    check_structure(model)
    monkeypatch.setattr(structure, "MAX_NODES", 4)
    with pytest.raises(ValueError, match="more than 4 nodes"):
        check_structure(model)


def test_parts_of_any_kind_count(monkeypatch):
    monkeypatch.setattr(structure, "MAX_PARTS", 20)
    check_structure(model_of(passing("x", "y")))
    crowded = model_of(passing("x", "y"))
    crowded.graph.value_info.add().type.tensor_type.shape.dim.extend(
        crowded.graph.input[0].type.tensor_type.shape.dim[0] for _ in range(30)
    )
    with pytest.raises(ValueError, match="more than 20 parts"):
        check_structure(crowded)


def test_values_of_tensors_do_not_count(monkeypatch):
    monkeypatch.setattr(structure, "MAX_PARTS", 20)
    model = model_of(passing("x", "y"))
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [99], [0] * 99))
    check_structure(model)


@pytest.mark.parametrize("old", [b"tensor", b"Identity"])
def test_names_that_are_not_text_are_damage(old, tmp_path):
    model = model_of(passing("x", "tensor"), passing("tensor", "y"))
    content = model.SerializeToString().replace(old, b"\xff" * len(old))
    with pytest.raises(ModelError, match=r"damaged: .*is not a name"):
        load(tmp_path / "model.onnx", content)


def test_names_of_any_length_are_refused(monkeypatch):
    monkeypatch.setattr(structure, "MAX_NAME", 8)
    check_structure(model_of(passing("x", "y")))
    with pytest.raises(ValueError, match="is not a name"):
        check_structure(model_of(passing("x", "y" * 9)))


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8, unique_by=lambda e: e[1])
)
def test_a_circle_is_refused_and_nothing_else(edges):
    before = {made: source for source, made in edges}

    def circles(tensor):
        seen = set()
        while tensor in before and tensor not in seen:
            seen.add(tensor)
            tensor = before[tensor]
        return tensor in seen

    model = model_of(*(passing(str(source), str(made)) for source, made in edges))
    if any(map(circles, before)):
        with pytest.raises(ValueError, match="circle"):
            check_structure(model)
    else:
        check_structure(model)


def test_an_empty_model_is_left_alone():
    check_structure(ModelProto())
