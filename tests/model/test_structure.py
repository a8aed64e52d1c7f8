"""Graphs that cannot be walked are refused, whatever follows; all others are left alone."""

import colour_model
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from detcli.core.errors import ModelError
from detcli.model import structure
from detcli.model.file import load
from detcli.model.structure import check_structure

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def model_of(*nodes, functions=()):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "graph", [x], [y])
    return helper.make_model(graph, opset_imports=OPSETS, functions=list(functions))


def function(name, *nodes):
    return helper.make_function("own", name, ["a"], ["b"], list(nodes), OPSETS)


def call(name, source="a", output="b"):
    return helper.make_node(name, [source], [output], domain="own")


def branch(*nodes, output="y"):
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, [2])
    return helper.make_graph(nodes, "branch", [], [value])


def passing(source, output):
    return helper.make_node("Identity", [source], [output])


def conditional(inner, source="x", output="y"):
    return helper.make_node("If", [source], [output], then_branch=inner)


def chain_of_functions(depth):
    """Each calls the one before it twice."""
    functions = [function("F0", passing("a", "b"))]
    for number in range(depth):
        before = f"F{number}"
        first_call = call(before, "a", "c")
        second_call = call(before, "c", "b")
        functions.append(function(f"F{number + 1}", first_call, second_call))
    return model_of(call(f"F{depth}", "x", "y"), functions=functions)


def nested_calls(depth):
    functions = [function("F0", passing("a", "b"))]
    for number in range(depth - 1):
        functions.append(function(f"F{number + 1}", call(f"F{number}")))
    return model_of(call(f"F{depth - 1}", "x", "y"), functions=functions)


ACCEPTED = {tail: colour_model.build(tail) for tail in colour_model.TAILS}
ACCEPTED |= {
    "any order": model_of(passing("b", "y"), passing("a", "b"), passing("x", "a")),
    "a branch that makes what its node makes": model_of(conditional(branch(passing("x", "y")))),
    "outputs without a name": model_of(
        helper.make_node("TopK", ["x", "x"], ["", "y"]),
        helper.make_node("TopK", ["x", "x"], ["", "z"]),
    ),
    "functions": chain_of_functions(10),
    "calls fifty deep": nested_calls(50),
    "empty": ModelProto(),
}


@pytest.mark.parametrize("model", ACCEPTED.values(), ids=ACCEPTED)
def test_a_graph_that_can_be_walked_is_left_alone(model):
    check_structure(model)


INNER = branch(passing("y", "w"), passing("w", "y"))
CIRCLES = [
    model_of(passing("y", "y")),
    model_of(passing("a", "y"), passing("y", "a")),
    model_of(passing("x", "y"), passing("b", "a"), passing("a", "b")),
    model_of(conditional(branch(passing("z", "w"), output="w")), passing("y", "z")),
    model_of(conditional(INNER)),
]
CALLS = [
    [function("F", call("F"))],
    [function("F", call("G")), function("G", call("F"))],
    [function("F", conditional(branch(call("F", "a", "y")), "a", "b"))],
]
TWICE = [function("F", passing("a", "b"))] * 2


def refused_models():
    """Each graph that cannot be walked, with the reason."""
    cases = []
    for model in CIRCLES:
        cases.append((model, "nodes form a circle"))
    for functions in CALLS:
        model = model_of(call("F", "x", "y"), functions=functions)
        cases.append((model, "functions call each other"))
    defined_twice = model_of(call("F", "x", "y"), functions=TWICE)
    cases.append((defined_twice, "F is defined twice"))
    cases.append((model_of(passing("x", "y"), passing("x", "y")), "two nodes make y"))
    cases.append((chain_of_functions(60), "more than 20000 nodes"))
    cases.append((nested_calls(51), "50 deep"))
    return cases


@pytest.mark.parametrize(("model", "reason"), refused_models())
def test_a_graph_that_cannot_be_walked_is_refused(model, reason):
    with pytest.raises(ValueError, match=reason):
        check_structure(model)


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
    model = model_of(passing("x", "y"))
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [99], [0] * 99))
    check_structure(model)  # values of tensors do not count
    crowded = model_of(passing("x", "y"))
    axis = crowded.graph.input[0].type.tensor_type.shape.dim[0]
    crowded.graph.value_info.add().type.tensor_type.shape.dim.extend([axis] * 30)
    with pytest.raises(ValueError, match="more than 20 parts"):
        check_structure(crowded)


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


def has_circle(source_of):
    """Whether any tensor depends on itself; source_of maps each to the one it is computed from."""
    for start in source_of:
        tensor = start
        visited = set()
        while tensor in source_of and tensor not in visited:
            visited.add(tensor)
            tensor = source_of[tensor]
        if tensor in visited:
            return True
    return False


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8, unique_by=lambda e: e[1])
)
def test_a_circle_is_refused_and_nothing_else(edges):
    source_of = {}
    nodes = []
    for source, output in edges:
        source_of[output] = source
        nodes.append(passing(str(source), str(output)))
    model = model_of(*nodes)
    if has_circle(source_of):
        with pytest.raises(ValueError, match="circle"):
            check_structure(model)
    else:
        check_structure(model)
