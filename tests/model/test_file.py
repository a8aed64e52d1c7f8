"""A file gives a complete model or a ModelError; external data becomes part of the model."""

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from detcli.core.errors import ModelError
from detcli.model import file as loading
from detcli.model.file import ModelFile, damage_as_model_error, load

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


def outside(tensor, location="weights", **entries):
    """Make the data of a tensor external, and return it."""
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return data


def tensor_of(array=WEIGHT, name="weight"):
    return numpy_helper.from_array(array, name)


def model_of(*nodes, weights=(), sparse=(), functions=()):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = nodes or [helper.make_node("Add", ["x", "weight"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [value], [output], weights, sparse_initializer=list(sparse)
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=8)


@pytest.fixture
def loaded(tmp_path):
    """Load a model whose external data is in a file called `weights`."""

    def run(model, data):
        if data is not None:
            (tmp_path / "weights").write_bytes(data)
        return load(tmp_path / "model.onnx", model.SerializeToString())

    return run


def test_a_tensor_is_read_from_its_part_of_the_file(loaded):
    tensor = tensor_of()
    data = outside(tensor, offset=8, length=24, checksum="?", unknown="key")
    model, external = loaded(model_of(weights=[tensor]), b"somebody" + data + b"more")
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), WEIGHT)
    assert [path.name for path in external] == ["weights"]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (TensorProto.INT4, 3),
        (TensorProto.BFLOAT16, 10),
        (TensorProto.INT8, 5),
        (TensorProto.FLOAT16, 10),
        (TensorProto.DOUBLE, 40),
    ],
)
def test_every_type_has_its_size(loaded, dtype, size):
    tensor = helper.make_tensor("weight", dtype, [5], bytes(range(size)), raw=True)
    model, _ = loaded(model_of(weights=[tensor]), outside(tensor) + b"more")
    assert model.graph.initializer[0].raw_data == bytes(range(size))


def in_a_node(tensor):
    node = helper.make_node("Constant", [], ["weight"], value=tensor)
    return model_of(node, helper.make_node("Add", ["x", "weight"], ["y"]))


def in_a_sparse_tensor(tensor):
    tensor.dims[:] = [6]
    indices = numpy_helper.from_array(np.arange(6), "indices")
    return model_of(sparse=[helper.make_sparse_tensor(tensor, indices, [2, 3])])


def in_a_function(tensor):
    nodes = [
        helper.make_node("Constant", [], ["w"], value=tensor),
        helper.make_node("Add", ["a", "w"], ["b"]),
    ]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Shift", ["a"], ["b"], nodes, opsets)
    node = helper.make_node("Shift", ["x"], ["y"], domain="own")
    return model_of(node, functions=[function])


@pytest.mark.parametrize("model_with", [in_a_node, in_a_sparse_tensor, in_a_function])
def test_external_data_is_loaded_wherever_its_tensor_is(loaded, model_with):
    tensor = tensor_of()
    data = outside(tensor)
    model, external = loaded(model_with(tensor), data)
    assert [path.name for path in external] == ["weights"]
    assert data in model.SerializeToString()
    assert b"weights" not in model.SerializeToString()
    tensor = tensor_of()
    outside(tensor, location="../weights")
    with pytest.raises(ModelError, match="not a path below the model's folder"):
        loaded(model_with(tensor), None)


DAMAGED = r"model\.onnx is damaged: "
FIELDS = {"dims": [2, 3], "data_type": TensorProto.FLOAT}


@pytest.mark.parametrize(
    ("data", "entries", "fields", "reason"),
    [
        (b"", {}, {}, "it has 0"),
        (bytes(23), {}, {}, "it has 23"),
        (bytes(30), {"offset": 8}, {}, "it has 22"),
        (bytes(24), {"length": 12}, {}, "it has 12"),
        (bytes(99), {"length": 25}, {}, "it has 25"),
        (bytes(24), {"offset": 1 << 60}, {}, "it has 0"),
        (bytes(24), {"offset": -1}, {}, DAMAGED),
        (bytes(24), {"offset": "x"}, {}, DAMAGED),
        (bytes(24), {"length": "x"}, {}, DAMAGED),
        (bytes(24), {}, {"dims": [-2, 3]}, DAMAGED),
        (bytes(24), {}, {"data_type": 99}, DAMAGED),
        (bytes(24), {}, {"data_type": TensorProto.STRING}, DAMAGED),
        (bytes(24), {}, {"data_type": 0}, DAMAGED),
    ],
)
def test_external_data_that_does_not_fit_is_refused(loaded, data, entries, fields, reason):
    tensor = tensor_of()
    outside(tensor, **entries)
    fields = FIELDS | fields
    tensor.dims[:], tensor.data_type = fields["dims"], fields["data_type"]
    message = reason if reason == DAMAGED else f"{reason} bytes for weight, which takes 24$"
    with pytest.raises(ModelError, match=message) as error:
        loaded(model_of(weights=[tensor]), data)
    assert reason == DAMAGED or "fetch weights again" in error.value.hint


def test_a_path_that_is_not_text_is_damage(tmp_path):
    tensor = tensor_of()
    outside(tensor)
    content = model_of(weights=[tensor]).SerializeToString().replace(b"weights", b"weigh\xff\xff")
    with pytest.raises(ModelError, match=DAMAGED):
        load(tmp_path / "model.onnx", content)


def test_data_that_no_message_can_hold_is_refused_unread(loaded, monkeypatch):
    tensors = [tensor_of(name="weight"), tensor_of(name="other")]
    data, _ = map(outside, tensors)
    model = model_of(weights=tensors)
    monkeypatch.setattr(loading, "MAX_BYTES", len(model.SerializeToString()) + 48)
    loaded(model, data)
    monkeypatch.setattr(loading, "MAX_BYTES", len(model.SerializeToString()) + 47)
    with pytest.raises(ModelError, match="more than 2 GiB"):
        loaded(model, data)
    model.graph.initializer[0].dims[:] = [1 << 40, 1 << 40]
    with pytest.raises(ModelError, match="more than 2 GiB"):
        loaded(model, data)


PACKED = helper.make_tensor("weight", TensorProto.INT4, [6], [1] * 6)  # a list of entries


@pytest.mark.parametrize("model_with", [lambda tensor: model_of(weights=[tensor]), in_a_node])
@pytest.mark.parametrize(
    ("tensor", "dims"),
    [
        (tensor_of(), [1 << 40]),
        (tensor_of(), [2, 4]),
        (tensor_of(), [5]),
        (tensor_of(), [-6]),
        (tensor_of(), [2, -3]),
        (tensor_of(), [-2, -3]),
        (PACKED, [97]),
        (PACKED, [1 << 40]),
    ],
)
def test_a_wrong_number_of_entries_is_damage(loaded, tensor, dims, model_with):
    loaded(model_with(tensor), None)
    wrong = TensorProto.FromString(tensor.SerializeToString())
    wrong.dims[:] = dims
    with pytest.raises(ModelError, match=f"{DAMAGED}weight "):
        loaded(model_with(wrong), None)


def test_a_model_without_external_data_is_unchanged(loaded):
    empty = helper.make_tensor("empty", TensorProto.FLOAT, [0], [])
    model = model_of(weights=[tensor_of(), empty])
    assert loaded(model, None) == (model, ())


def test_a_file_that_ends_after_its_graph_is_truncated(loaded):
    model = model_of(weights=[tensor_of()])
    model.ClearField("opset_import")
    with pytest.raises(ModelError, match="is truncated: it names no operator set"):
        loaded(model, None)


def fifo(path):
    os.mkfifo(path)


def huge(path):
    with path.open("wb") as file:
        file.truncate(12 << 30)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fifo, "it is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
        (Path.mkdir, "Is a directory"),
        (huge, "it is larger than 2 GiB"),
    ],
)
def test_what_is_no_file_of_a_model_is_neither_read_nor_waited_for(tmp_path, loaded, make, reason):
    path = tmp_path / "model.onnx"
    make(path)
    with pytest.raises(ModelError, match=f"cannot read the model .*: {reason}"):
        ModelFile.read(path)
    make(tmp_path / "weights")
    tensor = tensor_of()
    outside(tensor)
    with pytest.raises(ModelError, match=r"external data of .* cannot be read"):
        loaded(model_of(weights=[tensor]), None)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (KeyError("x"), r"model\.onnx is damaged: ."),
        (AssertionError(), r"model\.onnx is damaged: AssertionError"),
        (RecursionError(), r"model\.onnx is damaged: ."),
        (MemoryError(), "needs more memory"),
    ],
)
def test_whatever_breaks_on_a_graph_is_a_model_error(error, why):
    with pytest.raises(ModelError, match=why), damage_as_model_error("model.onnx"):  # type: ignore[arg-type]
        raise error


POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:df1a0933d4c538043bf34a921f167e0402e7a583680ac2aab6d206b357fdc8b9
size 103630106
"""


def test_a_pointer_of_git_lfs_says_how_to_fetch_the_file(detcli, tmp_path):
    (tmp_path / "model.onnx").write_bytes(POINTER)
    process = detcli("predict", "a.png", "-m", tmp_path / "model.onnx")
    assert process.returncode == 4
    assert "model.onnx is a Git LFS pointer, in place of the file itself" in process.stderr
    assert "git lfs pull" in process.stderr


def test_weights_beside_a_model_may_be_such_a_pointer(loaded):
    tensor = tensor_of()
    outside(tensor, length=2400)
    with pytest.raises(ModelError, match="weights is a Git LFS pointer") as error:
        loaded(model_of(weights=[tensor]), POINTER)
    assert "git lfs pull" in error.value.hint


def test_a_description_beside_a_model_may_be_such_a_pointer(detcli, make_model, make_image):
    model = make_model()
    model.with_name("preprocessor_config.json").write_bytes(POINTER)
    process = detcli("predict", make_image("a.png"), "-m", model)
    assert process.returncode == 4
    assert "preprocessor_config.json is a Git LFS pointer" in process.stderr


def test_a_file_of_names_may_be_such_a_pointer(detcli, make_model, make_image, tmp_path):
    names = tmp_path / "names.txt"
    names.write_bytes(POINTER)
    process = detcli("predict", make_image("a.png"), "-m", make_model(), "--names", names)
    assert process.returncode == 2
    assert "names.txt is a Git LFS pointer" in process.stderr


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.mp4"])
def test_an_image_or_video_may_be_such_a_pointer(name, detcli, make_model, tmp_path):
    (tmp_path / name).write_bytes(POINTER)
    process = detcli("predict", tmp_path / name, "-m", make_model())
    assert process.returncode == 3
    assert "a Git LFS pointer" in process.stdout
    assert "git lfs pull" in process.stdout + process.stderr


def test_an_intact_graph_is_not_called_damaged(monkeypatch):
    """Whatever reading it meets: only a graph that breaks ONNX's own rules is damaged."""

    def fail(*_args, **_options):
        raise ZeroDivisionError("integer modulo by zero")

    monkeypatch.setattr("detcli.model.recognise.read_graph", fail)
    content = model_of(weights=[tensor_of()]).SerializeToString()
    file = ModelFile.read(Path("odd.onnx"), content=content)
    assert "odd.onnx is not a detector that detcli knows" in str(file.refusal)
    assert "integer modulo by zero" in str(file.refusal)
    broken = model_of(helper.make_node("Add", ["x"], ["y"])).SerializeToString()
    file = ModelFile.read(Path("broken.onnx"), content=broken)
    with pytest.raises(ModelError, match=r"broken.onnx is damaged: integer modulo by zero"):
        _ = file.contract
