"""top_k of whole rows, beside the sorts and top-ks of other libraries.

None of those settles ties, so their values have to be right, and their indices where a value
occurs once.
"""

import math

import numpy as np
from onnx import parser

import detcli
from benchmarks.gpu.devices import downloader, upload_all
from benchmarks.gpu.measure import Case, Way
from benchmarks.gpu.peers import DisagreementError, MissingError, import_optional, on_host, torch_on
from detcli.backend.cuda import topk
from detcli.backend.cuda.topk import DeviceArray
from detcli.backend.libraries import CUDA, require_provider
from detcli.backend.session import onnxruntime
from detcli.core.errors import DetcliError

KEEP = 300
INPUTS = 3
ALL = ((1, 1025), (1, 8400), (1, 33600), (1, 1_000_000), (64, 8400))
QUICK = ((1, 8400), (1, 1_000_000))
TINY = ((1, 1025), (3, 700), (1, 20_000))


def case_of(gpu, shape, generator, scope) -> Case:
    """The top-k of rows of a shape."""
    arrays = [generator.random(shape, np.float32) for _ in range(INPUTS)]
    expected = [detcli.top_k(array, KEEP) for array in arrays]

    def check(number, answer, ours):
        compare(answer, expected[number], exactly=ours)

    return Case(
        f"[{shape[0]},{shape[1]}] float32",
        INPUTS,
        {
            "detcli": lambda: _ours(gpu, arrays, scope),
            "torch.topk": lambda: _torch(gpu, arrays, lambda torch, row: torch.topk(row, KEEP)),
            "torch.sort": lambda: _torch(gpu, arrays, _torch_sort),
            "CuPy argpartition": lambda: _cupy(gpu, arrays),
            "ONNX Runtime TopK": lambda: _onnxruntime(gpu, arrays, scope),
        },
        check,
        bytes=4 * math.prod(shape) + 12 * shape[0] * KEEP,
    )


def compare(answer, expected, *, exactly):
    """Hold values and indices `(rows, K)` against NumPy's.

    Raises:
        DisagreementError: They are not the same, but for ties.
    """
    (values, indices), (wanted, wanted_indices) = answer, expected
    if not np.array_equal(values, wanted):
        raise DisagreementError("other values than NumPy's")
    # In a sorted row a value occurs once where it differs from both neighbours.
    rising = np.diff(wanted, axis=-1) != 0
    edge = np.zeros((len(wanted), 1), bool)
    certain = np.concatenate([~edge, rising], -1) & np.concatenate([rising, edge], -1)
    if not np.array_equal(indices[certain | exactly], wanted_indices[certain | exactly]):
        raise DisagreementError("other indices than NumPy's")


def _ours(gpu, arrays, scope) -> Way:
    """The kernels, as the public function launches them."""
    inputs = []
    for memory, array in zip(upload_all(gpu, arrays, scope), arrays, strict=True):
        inputs.append(DeviceArray(memory.address, array.shape, array.dtype))
    shape = (arrays[0].shape[0], KEEP)
    values = topk._empty(gpu, shape, np.dtype(np.float32))  # noqa: SLF001
    indices = topk._empty(gpu, shape, np.dtype(np.int64))  # noqa: SLF001

    def enqueue(number):
        topk._enqueue(gpu, inputs[number], values, indices, descending=True)  # noqa: SLF001

    outputs = [
        (values.address, values.shape, values.dtype),
        (indices.address, indices.shape, indices.dtype),
    ]
    download = downloader(gpu, outputs, scope)
    return Way(enqueue, lambda _: download())


def _torch(gpu, arrays, best) -> Way:
    peer = torch_on(gpu)
    tensors = peer.upload_all(arrays)
    enqueue = peer.eager(lambda tensor: best(peer.torch, tensor), tensors)
    return Way(enqueue, lambda result: tuple(map(peer.to_host, result)))


def _torch_sort(torch, tensor):
    values, indices = torch.sort(tensor, dim=-1, descending=True)
    return values[..., :KEEP], indices[..., :KEEP]


def _cupy(gpu, arrays) -> Way:
    if on_host(gpu):
        raise MissingError("CuPy needs a GPU")
    cupy = import_optional("cupy", "CuPy")
    cupy.cuda.Device(gpu.ordinal).use()
    stream = cupy.cuda.ExternalStream(gpu.stream, gpu.ordinal)
    uploaded = [cupy.asarray(array) for array in arrays]
    cupy.cuda.runtime.deviceSynchronize()

    def enqueue(number):
        with stream:
            array = uploaded[number]
            rest = array.shape[-1] - KEEP
            indices = cupy.argpartition(array, rest, axis=-1)[..., rest:]
            values = cupy.take_along_axis(array, indices, axis=-1)
            order = cupy.argsort(-values, axis=-1)
            return (
                cupy.take_along_axis(values, order, axis=-1),
                cupy.take_along_axis(indices, order, axis=-1),
            )

    def fetch(result):
        with stream:
            return tuple(map(cupy.asnumpy, result))

    return Way(enqueue, fetch)


def _onnxruntime(gpu, arrays, scope) -> Way:
    """A graph of one TopK node, on our stream, from and to our memory."""
    provider, settings, device = "CPUExecutionProvider", {}, ("cpu", 0)
    if not on_host(gpu):
        try:
            require_provider(CUDA)
        except DetcliError as error:
            raise MissingError(str(error)) from error
        provider, device = CUDA, ("cuda", gpu.ordinal)
        settings = {"device_id": str(gpu.ordinal), "user_compute_stream": str(gpu.stream)}
    rows, n = arrays[0].shape
    graph = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        ranking (float[{rows}, {n}] values) => (float[] best, int64[] indices)
            <int64[1] k = {{{min(KEEP, n)}}}>
            {{ best, indices = TopK <axis = -1> (values, k) }}"""
    ).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=[(provider, settings)])
    if session.get_providers()[0] != provider:
        raise DisagreementError(f"ONNX Runtime did not take {provider}")
    shape = (arrays[0].shape[0], KEEP)
    best = gpu.allocate(4 * shape[0] * KEEP)
    indices = gpu.allocate(8 * shape[0] * KEEP)
    scope.callback(best.close)
    scope.callback(indices.close)
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    kind, ordinal = device
    bindings = []
    for memory in upload_all(gpu, arrays, scope):
        binding = session.io_binding()
        binding.bind_input("values", kind, ordinal, np.float32, (rows, n), memory.address)
        binding.bind_output("best", kind, ordinal, np.float32, shape, best.address)
        binding.bind_output("indices", kind, ordinal, np.int64, shape, indices.address)
        bindings.append(binding)

    def enqueue(number):
        session.run_with_iobinding(bindings[number], options)

    parts = [(best.address, shape, np.float32), (indices.address, shape, np.int64)]
    download = downloader(gpu, parts, scope)
    return Way(enqueue, lambda _: download())
