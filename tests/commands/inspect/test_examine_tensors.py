from onnx import TensorProto, helper

from detcli.commands.inspect.examine import DynamicAxis, TensorInfo, describe_tensor, dynamic_axes

FORMULA = "(((height - 1)//2)) + 1*(((width - 1)//2)) + 1"


def described(name, dtype, dims):
    return describe_tensor(helper.make_tensor_value_info(name, dtype, dims))


def test_name_type_and_shape_come_from_the_file():
    found = described("images", TensorProto.FLOAT16, ["batch", 3, 640, None])
    assert found == TensorInfo("images", "float16", ("batch", 3, 640, None))


def test_formulas_are_not_symbols():
    assert described("output", TensorProto.FLOAT, [1, FORMULA]).shape == (1, None)


def test_an_unknown_type_is_a_number():
    assert described("x", 99, [1]).dtype == "type 99"


def test_axes_of_one_symbol_are_one_axis():
    tensors = [
        TensorInfo("x", "float32", ("b", 3, "h")),
        TensorInfo("y", "float32", ("b", None, 0)),
    ]
    assert dynamic_axes(tensors) == (
        DynamicAxis("b", ("x[0]", "y[0]")),
        DynamicAxis("h", ("x[2]",)),
        DynamicAxis("?", ("y[1]", "y[2]")),
    )


def test_fixed_axes_are_left_out():
    assert dynamic_axes([TensorInfo("x", "float32", (1, 3))]) == ()
