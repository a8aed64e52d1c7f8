"""The network on memory addresses, with ONNX Runtime's CPU, whose memory NumPy can read."""

import numpy as np
import onnxruntime
import pytest

from detcli.backend.cuda import network as module
from detcli.backend.cuda.network import Network
from detcli.backend.session import CPU, open_session
from detcli.core.errors import DeviceMemoryError, InferenceError
from detcli.model.file import prepare

SHAPE = (1, 3, 64, 64)


@pytest.fixture
def on_cpu(make_model):
    """Open a colour model, see `colour_model.build`, as a network on host memory."""

    def make(**properties):
        model = prepare(make_model(**properties))
        session = open_session(model.graph, CPU, model.name)
        return Network(session, model.contract, device=("cpu", 0)), session, model.contract

    return make


def address(array):
    return array.ctypes.data


def tensor_of(shape, dtype, random):
    return random.random(shape, np.float32).astype(dtype)


@pytest.mark.parametrize(
    ("tail", "size", "batch", "dtype"),
    [
        *(("body", 64, 1, np.float32), ("body", None, None, np.float16)),
        *(("transposed", None, 1, np.float16), ("transposed", 64, 2, np.float32)),
        *(("ultralytics", None, 2, np.float32), ("ultralytics", 64, None, np.float16)),
    ],
)
def test_it_reads_and_writes_the_given_addresses(tail, size, batch, dtype, on_cpu, random):  # noqa: PLR0913, PLR0917
    network, session, contract = on_cpu(tail=tail, size=size, batch=batch, dtype=dtype)
    assert (network.batch, network.input_dtype, network.output_dtype) == (batch, dtype, dtype)
    shape = (batch or 3, 3, 64, 64)
    head = np.full(network.output_shape(shape), np.nan, dtype)
    tensor = tensor_of(shape, dtype, random)
    network.run(address(tensor), address(head), shape)
    (expected,) = session.run(None, {contract.input_name: tensor})
    assert head.shape == expected.shape
    np.testing.assert_array_equal(head, expected)
    tensor[:] = tensor_of(shape, dtype, random)  # the binding is to the address, not the content
    network.run(address(tensor), address(head), shape)
    assert (head != expected).any()


def test_sizes_and_addresses_may_change_on_a_dynamic_graph(on_cpu, random):
    """Its anchors are counted once for each size."""
    network, session, contract = on_cpu(size=None, batch=None)
    counted, run = [], session.run
    session.run = lambda *arguments: counted.append(arguments[1]["images"].shape) or run(*arguments)
    assert network.output_shape((5, 3, 64, 64)) == (5, 7, 64)
    assert network.output_shape((9, 3, 64, 64)) == (9, 7, 64)
    assert network.output_shape((1, 3, 32, 64)) == (1, 7, 32)
    assert counted == [(1, 3, 64, 64), (1, 3, 32, 64)]
    for shape in [(1, 3, 64, 64), (2, 3, 32, 64), (3, 3, 64, 64), (1, 3, 64, 64)]:
        tensor = tensor_of(shape, np.float32, random)
        heads = np.full((2, *network.output_shape(shape)), np.nan, np.float32)
        for head in heads:
            network.run(address(tensor), address(head), shape)
        (expected,) = session.run(None, {contract.input_name: tensor})
        np.testing.assert_array_equal(heads[0], expected)
        np.testing.assert_array_equal(heads[1], expected)


def test_a_static_graph_is_not_run_to_learn_its_shape(on_cpu):
    network, session, _ = on_cpu(tail="transposed", batch=2)
    del session._sess  # noqa: SLF001 - nothing can run
    assert network.output_shape((2, 3, 64, 64)) == (2, 64, 7)


def test_a_closed_network_is_an_error(on_cpu):
    network, *_ = on_cpu(size=None)
    network.close()
    network.close()
    for use in (lambda: network.run(0, 0, SHAPE), lambda: network.output_shape(SHAPE)):
        with pytest.raises(InferenceError, match="closed"):
            use()


def test_a_failing_run_names_its_shape(on_cpu):
    network, *_ = on_cpu()
    tensor = np.zeros((1, 3, 32, 32), np.float32)
    head = np.zeros((1, 7, 64), np.float32)
    with pytest.raises(InferenceError, match=r"batch of shape \[1, 3, 32, 32\]") as caught:
        network.run(address(tensor), address(head), tensor.shape)
    assert not isinstance(caught.value, DeviceMemoryError)


def test_element_types_are_named_as_in_onnxruntime(make_model):
    """The double of test_network_graphs.py would not notice another spelling."""
    for dtype in (np.float32, np.float16):
        model = make_model(dtype=dtype)
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        assert module.ELEMENT_TYPES[session.get_outputs()[0].type] == dtype
