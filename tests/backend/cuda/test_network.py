"""The network on memory addresses: with ONNX Runtime's CPU, and a double that knows CUDA graphs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

from detcli.backend.cuda import network as module
from detcli.backend.cuda.network import MAX_BINDINGS, MAX_GRAPHS, Network, open_network
from detcli.backend.session import CPU, CUDA, TENSORRT, OptionRefusedError, open_session
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import (
    DetcliWarning,
    DeviceError,
    DeviceMemoryError,
    InferenceError,
    ModelError,
)
from detcli.model.contract import Layout
from detcli.model.prepared import prepare

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
        ("body", 64, 1, np.float32),
        ("body", None, None, np.float16),
        ("transposed", None, 1, np.float16),
        ("transposed", 64, 2, np.float32),
        ("ultralytics", None, 2, np.float32),
        ("ultralytics", 64, None, np.float16),
    ],
)
def test_it_reads_and_writes_the_given_addresses(tail, size, batch, dtype, on_cpu, random):
    network, session, contract = on_cpu(tail=tail, size=size, batch=batch, dtype=dtype)
    assert network.batch == batch
    assert network.input_dtype == dtype
    assert network.output_dtype == dtype
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
    """Its anchors are counted once for each size, in the shape that will run."""
    network, session, contract = on_cpu(size=None, batch=None)
    counted = []
    run = session.run

    def count_and_run(names, feed, options=None):
        counted.append(feed["images"].shape)
        return run(names, feed, options)

    session.run = count_and_run
    assert network.output_shape((5, 3, 64, 64)) == (5, 7, 64)
    assert network.output_shape((9, 3, 64, 64)) == (9, 7, 64)
    assert network.output_shape((1, 3, 32, 64)) == (1, 7, 32)
    assert counted == [(5, 3, 64, 64), (1, 3, 32, 64)]
    for shape in [(1, 3, 64, 64), (2, 3, 32, 64), (3, 3, 64, 64), (1, 3, 64, 64)]:
        tensor = tensor_of(shape, np.float32, random)
        first_head = np.full(network.output_shape(shape), np.nan, np.float32)
        second_head = first_head.copy()
        network.run(address(tensor), address(first_head), shape)
        network.run(address(tensor), address(second_head), shape)
        (expected,) = session.run(None, {contract.input_name: tensor})
        np.testing.assert_array_equal(first_head, expected)
        np.testing.assert_array_equal(second_head, expected)


def test_a_static_graph_is_not_run_to_learn_its_shape(on_cpu):
    network, session, _ = on_cpu(tail="transposed", batch=2)
    del session._sess  # noqa: SLF001 - nothing can run
    assert network.output_shape((2, 3, 64, 64)) == (2, 64, 7)


def test_a_closed_network_is_an_error(on_cpu):
    network, _, _ = on_cpu(size=None)
    network.close()
    network.close()
    for use in (lambda: network.run(0, 0, SHAPE), lambda: network.output_shape(SHAPE)):
        with pytest.raises(InferenceError, match="closed"):
            use()


def test_element_types_are_named_as_in_onnxruntime(make_model):
    """The double below would not notice another spelling."""
    for dtype in (np.float32, np.float16):
        model = make_model(dtype=dtype)
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        assert module.ELEMENT_TYPES[session.get_outputs()[0].type] == dtype


# ---------------------------------------------------------------- CUDA graphs

WAITS_NOT = "disable_synchronize_execution_providers"


class Session:
    """A double that captures at the first run with a graph id, then replays.

    A replay silently writes to the addresses of its capture, whatever is bound, as in
    ONNX Runtime. `runs` holds the kind of each run and the address it wrote to.
    """

    def __init__(self, fail=()):
        self.captured = {}
        self.runs = []
        self.failures = list(fail)
        self.options = []

    def get_outputs(self):
        return [SimpleNamespace(name="head", type="tensor(float16)")]

    def io_binding(self):
        bound = {}
        return SimpleNamespace(
            bound=bound,
            bind_input=lambda *binding: bound.update(input=binding),
            bind_output=lambda *binding: bound.update(output=binding),
        )

    def run_with_iobinding(self, binding, options):
        failure = self.failures.pop(0) if self.failures else None
        if failure:
            raise failure
        self.options.append(options)
        bound = binding.bound
        number = entry(options, "gpu_graph_id")
        if number in (None, "-1"):
            self.runs.append(("ordinary", bound["output"][-1]))
        elif number not in self.captured:
            self.captured[number] = bound["output"][-1]
            self.runs.append(("captured", bound["output"][-1]))
        else:
            self.runs.append(("replayed", self.captured[number]))
        self.bound = bound

    @property
    def kinds(self):
        """Of each run, whether it was ordinary, captured or replayed."""
        return [kind for kind, _ in self.runs]

    def entries(self, name):
        """What the runs were told by an entry of their options, each value once."""
        return {entry(options, name) for options in self.options}


def entry(options, name):
    try:
        return options.get_run_config_entry(name)
    except RuntimeError:  # not set
        return None


@pytest.fixture
def contract(make_model):
    return prepare(make_model(dtype=np.float16)).contract


@pytest.fixture
def pair(contract):
    """The double, and the network that captures with it."""
    session = Session()
    return session, Network(session, contract, uses_graph=True)


def test_a_graph_is_captured_at_the_second_use_and_replayed_from_the_third(contract):
    session = Session()
    network = Network(session, contract, ("cuda", 2), uses_graph=True)
    for _ in range(4):
        network.run(1000, 2000, SHAPE)
    assert session.kinds == ["ordinary", "captured", "replayed", "replayed"]
    assert session.entries(WAITS_NOT) == {"1"}
    assert session.bound == {
        "input": ("images", "cuda", 2, np.float16, SHAPE, 1000),
        "output": ("head", "cuda", 2, np.float16, (1, 7, 64), 2000),
    }


def test_other_addresses_are_never_written_by_a_replay(pair):
    """Fails if all pairs share a graph id."""
    session, network = pair
    address_pairs = [(1000, 2000), (1000, 3000), (4000, 2000)] * 3
    for images_address, head_address in address_pairs:
        network.run(images_address, head_address, SHAPE)
        _, written_address = session.runs[-1]
        assert written_address == head_address
    assert len(session.runs) == len(address_pairs)
    assert len(session.captured) == 3
    assert session.runs[-1][0] == "replayed"


def test_of_a_dynamic_graph_only_shapes_that_repeat_are_captured(make_model):
    """Full batches, on each pair of addresses; neither the short last one nor sizes in turns."""
    full = (8, 3, 64, 64)
    short = (5, 3, 64, 64)
    narrow = (8, 3, 64, 32)
    contract = replace(prepare(make_model(batch=None)).contract, input_size=None)
    session = Session()
    network = Network(session, contract, uses_graph=True, only_repeated=True)

    def run(shapes):
        del session.runs[:]
        for number, shape in enumerate(shapes):
            network.run(number % 3, 1000 + number % 3, shape)
        return session.kinds

    assert run([full, full, full, short]) == ["ordinary"] * 4
    assert run([full, narrow] * 4) == ["ordinary"] * 8
    assert run([full] * 8) == ["ordinary"] * 3 + ["captured"] * 3 + ["replayed"] * 2
    assert run([full, short, full, short]) == ["replayed", "ordinary", "replayed", "ordinary"]
    assert len(session.captured) == 3


def test_without_graphs_every_run_is_ordinary_and_bound_once(contract):
    session = Session()
    network = Network(session, contract)
    bindings = []
    bind = session.io_binding
    session.io_binding = lambda: bindings.append(1) or bind()
    for _ in range(3):
        network.run(1000, 2000, SHAPE)
    assert session.runs == [("ordinary", 2000)] * 3
    assert len(bindings) == 1
    assert session.entries("gpu_graph_id") == {None}
    assert session.entries(WAITS_NOT) == {"1"}


def test_the_run_that_counts_anchors_is_not_captured(make_model):
    contract = prepare(make_model(size=None, batch=None)).contract
    session = Session()
    runs = []

    def run(names, feed, options):
        runs.append((names, feed["images"].shape, entry(options, "gpu_graph_id")))
        assert entry(options, WAITS_NOT) is None
        return [np.zeros((4, 7, 64), np.float16)]

    session.run = run  # type: ignore[attr-defined]
    network = Network(session, contract, uses_graph=True)
    network.run(1000, 2000, (4, 3, 64, 64))
    assert runs == [(None, (4, 3, 64, 64), "-1")]  # planned for what will run


def test_neither_graphs_nor_bindings_grow_without_bound(pair):
    session, network = pair
    for count in [2 * MAX_BINDINGS] * 3 + [1] + [MAX_GRAPHS + 5] * 3:
        for number in range(count):
            network.run(number, 1_000_000 + number, SHAPE)
    assert len(session.captured) <= MAX_GRAPHS
    assert len(network._bindings) <= MAX_BINDINGS  # noqa: SLF001 - what is counted
    for kind, written in session.runs[-(MAX_GRAPHS + 5) :]:
        assert kind in ("ordinary", "replayed")
        assert written >= 1_000_000


def test_a_captured_pair_stays_bound(pair):
    session, network = pair
    for _ in range(2):
        network.run(1, 2, SHAPE)
    for number in range(2 * MAX_BINDINGS):
        network.run(number, 1000 + number, SHAPE)
    network.run(1, 2, SHAPE)
    assert session.runs[-1] == ("replayed", 2)


@pytest.mark.parametrize(
    ("message", "batch", "advice"),
    [
        ("Available memory of 5 is smaller than requested bytes of 6", 2, "with a smaller batch"),
        ("CUDA failure 2: out of memory ; GPU=0 ; hostname=box ; line=1", None, "a batch of 1"),
    ],
)
def test_running_out_of_memory(message, batch, advice, make_model):
    contract = prepare(make_model(batch=batch)).contract
    session = Session([RuntimeError(f"[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : {message}")])
    shape = (batch or 8, 3, 64, 64)
    with pytest.raises(DeviceMemoryError) as caught:
        Network(session, contract).run(1, 2, shape)
    assert f"shape {list(shape)}" in str(caught.value)
    assert "hostname" not in str(caught.value)
    assert advice in caught.value.hint


def test_running_out_of_memory_while_counting_anchors(make_model):
    contract = prepare(make_model(size=None)).contract
    session = Session()

    def run(*_):
        raise RuntimeError("Failed to allocate memory for requested buffer of size 1")

    session.run = run  # type: ignore[attr-defined]
    with pytest.raises(DeviceMemoryError, match=r"\[1, 3, 4096, 4096\]"):
        Network(session, contract).output_shape((1, 3, 4096, 4096))


def test_a_failed_capture_continues_without_graphs(contract):
    """The batch is not lost, and no other capture is tried."""
    failure = RuntimeError("CUDA failure 900: operation not permitted when stream is capturing")
    session = Session([None, failure])
    network = Network(session, contract, uses_graph=True)
    network.run(1, 2, SHAPE)
    with pytest.warns(DetcliWarning, match="without CUDA graphs: CUDA failure 900"):
        network.run(1, 2, SHAPE)
    assert not network.uses_graph
    network.run(1, 2, SHAPE)
    network.run(3, 4, SHAPE)
    network.run(3, 4, SHAPE)
    assert session.kinds == ["ordinary"] * 5


def test_a_head_of_another_type_is_a_model_error(contract):
    session = Session()
    session.get_outputs = lambda: [SimpleNamespace(name="head", type="tensor(double)")]
    with pytest.raises(ModelError, match=r"tensor\(double\)"):
        Network(session, contract)


@pytest.fixture
def opened_sessions(monkeypatch):
    """The providers of each session; with `refuse`, those that capture are refused."""
    requests = []

    def open_double(graph, providers, title):
        assert graph
        requests.append(providers)
        refused = {"enable_cuda_graph", "trt_profile_max_shapes"}
        for _, settings in providers:
            if opened.refuse and not refused.isdisjoint(settings):  # type: ignore[attr-defined]
                raise OptionRefusedError(f"{title}: it has control flow")
        opened.session = Session()  # type: ignore[attr-defined]
        return opened.session  # type: ignore[attr-defined]

    def opened():
        sessions = []
        for providers in requests:
            names_and_graphs = []
            for name, settings in providers:
                names_and_graphs.append((name, "enable_cuda_graph" in settings))
            sessions.append(names_and_graphs)
        return sessions

    opened.refuse = False  # type: ignore[attr-defined]
    opened.asked = requests  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "open_session", open_double)
    monkeypatch.setattr(module, "REPLAYS_RIGHTLY", True)
    return opened


@pytest.mark.parametrize(
    ("wish", "properties", "uses_graph"),
    [
        (None, {}, True),
        (None, {"batch": 4}, True),
        (None, {"batch": None}, True),
        (None, {"size": None}, True),
        (True, {"size": None, "batch": None}, True),
        (False, {}, False),
        (False, {"batch": None}, False),
    ],
)
def test_graphs_are_used_unless_refused(wish, properties, uses_graph, opened_sessions, make_model):
    model = prepare(make_model(**properties))
    network = open_network(model, Device.parse("cuda:1"), 32512, DeviceOptions(cuda_graph=wish))
    assert network.uses_graph is uses_graph
    assert opened_sessions() == [[(CUDA, uses_graph)]]
    opened_sessions.session.run = lambda *_: [np.zeros((4, 7, 64), np.float16)]
    for _ in range(2):
        network.run(1, 2, (4, 3, 64, 64))
    last_kind = opened_sessions.session.kinds[-1]
    if uses_graph and (wish or None not in properties.values()):
        assert last_kind == "captured"
    else:
        assert last_kind == "ordinary"
    ((_, provider_options),) = opened_sessions.asked[0]
    assert provider_options["device_id"] == "1"
    assert provider_options["user_compute_stream"] == "32512"


@pytest.mark.parametrize("wish", [None, True])
def test_a_session_that_never_captures_is_opened_without_graphs(
    wish, opened_sessions, make_model, recwarn
):
    """It would wait for the GPU after each run. Of rows, only a run tells how many there are."""
    model = prepare(make_model(tail="authors"))
    contract = replace(model.contract, layout=Layout.ROWS, anchor_count=None)
    model = replace(model, contract=contract)
    network = open_network(model, Device.parse("cuda"), 1, DeviceOptions(cuda_graph=wish))
    assert opened_sessions() == [[(CUDA, False)]]
    assert not network.uses_graph
    messages = [str(warning.message) for warning in recwarn]
    expected = ["without CUDA graphs: the number of rows varies"] if wish else []
    assert messages == expected


def test_graphs_that_are_replayed_wrongly_are_not_used(
    opened_sessions, make_model, monkeypatch, caplog
):
    monkeypatch.setattr(module, "REPLAYS_RIGHTLY", False)
    caplog.set_level("INFO", "detcli")
    network = open_network(prepare(make_model()), Device.parse("cuda"), 1, DeviceOptions())
    assert not network.uses_graph
    assert opened_sessions() == [[(CUDA, False)]]
    assert "without CUDA graphs" in caplog.text


def test_asking_for_graphs_that_are_replayed_wrongly_is_an_error(
    opened_sessions, make_model, monkeypatch
):
    monkeypatch.setattr(module, "REPLAYS_RIGHTLY", False)
    options = DeviceOptions(cuda_graph=True)
    with pytest.raises(DeviceError, match=r"1\.30 or later.*wrong boxes") as caught:
        open_network(prepare(make_model()), Device.parse("cuda"), 1, options)
    assert "leave --cuda-graph out" in caught.value.hint
    assert opened_sessions() == []


@pytest.mark.parametrize("wish", [None, True])
def test_a_refused_capture_is_warned_about_if_graphs_were_requested(
    wish, opened_sessions, make_model, caplog, recwarn
):
    opened_sessions.refuse = True
    caplog.set_level("INFO", "detcli")
    options = DeviceOptions(cuda_graph=wish)
    network = open_network(prepare(make_model()), Device.parse("cuda"), 1, options)
    assert opened_sessions() == [[(CUDA, True)], [(CUDA, False)]]
    assert not network.uses_graph
    message = "without CUDA graphs: colours: it has control flow"
    if wish:
        assert message in str(recwarn.pop(DetcliWarning).message)
    else:
        assert message in caplog.text
    assert len(recwarn) == 0


@pytest.mark.usefixtures("cache")
def test_tensorrt_is_told_on_how_many_images_it_mostly_runs(opened_sessions, make_model):
    model = prepare(make_model(batch=None))
    open_network(model, Device.parse("tensorrt"), 1, DeviceOptions(), 16)
    ((_, engine), _) = opened_sessions.asked[0]
    assert engine["trt_profile_opt_shapes"] == "images:16x3x64x64"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("refuse", [False, True])
def test_tensorrt_is_told_the_shapes_unless_it_takes_parts_of_a_graph(
    refuse, opened_sessions, make_model
):
    opened_sessions.refuse = refuse
    open_network(prepare(make_model(batch=None)), Device.parse("tensorrt"), 1, DeviceOptions())
    have_shapes = []
    for (_, engine), _ in opened_sessions.asked:
        have_shapes.append("trt_profile_max_shapes" in engine)
    assert have_shapes == [True, False][: 1 + refuse]


def test_tensorrt_leaves_the_rest_to_cuda_and_captures_nothing(opened_sessions, make_model, cache):
    options = DeviceOptions(gpu_mem_limit=1 << 30, half=True)
    network = open_network(prepare(make_model()), Device.parse("tensorrt:1"), 32512, options)
    assert opened_sessions() == [[(TENSORRT, False), (CUDA, False)]]
    assert not network.uses_graph
    (_, engine), (_, rest) = opened_sessions.asked[0]
    assert engine["trt_fp16_enable"] == "True"
    assert engine["trt_engine_cache_path"].startswith(str(cache))
    assert engine["user_compute_stream"] == rest["user_compute_stream"] == "32512"
    assert engine["device_id"] == rest["device_id"] == "1"
    assert rest["gpu_mem_limit"] == str(1 << 30)
