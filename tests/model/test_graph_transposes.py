"""Transposes that an engine may drop."""

import colour_model
import onnx
import pytest

from detcli.model.graph import bare_transposes

GRAPH = """
    <ir_version: 8, opset_import: ["": 17]>
    ends (float[1, 2, 3] images) => (%s)
    {
        swapped = Transpose<perm = [0, 2, 1]>(images)
        reversed = Transpose(images)
        unmoved = Transpose<perm = [0, 1, 2]>(images)
        behind = Identity(swapped)
        dropped = Dropout(behind)
        joined = Concat<axis = 2>(swapped)
        converted = Cast<to = 10>(swapped)
        used = Relu(swapped)
    }
"""


def found(*outputs, shape="float[1, 3, 2]"):
    text = GRAPH % ", ".join(f"{shape} {name}" for name in outputs)
    return [node.output[0] for node in bare_transposes(onnx.parser.parse_model(text).graph)]


@pytest.mark.parametrize("output", ["swapped", "reversed"])
def test_a_transpose_that_makes_an_output_is_found(output):
    assert found(output) == [output]


@pytest.mark.parametrize("output", ["behind", "dropped"])
def test_operators_that_simplifiers_remove_hide_nothing(output):
    assert found(output) == ["swapped"]


@pytest.mark.parametrize("output", ["unmoved", "joined", "converted", "used", "images", "nowhere"])
def test_other_transposes_are_not_found(output):
    assert found(output) == []


def test_each_is_found_once_in_the_order_of_the_outputs():
    assert found("used", "reversed", "behind", "swapped", "dropped") == ["reversed", "swapped"]


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_only_one_detector_tail_has_a_bare_transpose(tail):
    assert len(bare_transposes(colour_model.build(tail).graph)) == (tail == "transposed")
