"""OpenVINO's import and devices; precision, cache and scheduling of its networks."""

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import onnx.parser
import optional
import pytest

from detcli.backend import open_backend, open_tensors
from detcli.backend import openvino as package
from detcli.backend.openvino import library, network
from detcli.backend.openvino.library import open_core, reason
from detcli.backend.openvino.network import REQUEST_COUNT, open_network, scheduling
from detcli.backend.openvino.precision import choose_precision, precision_of
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import DeviceError, InferenceError, ModelError
from detcli.model.file import prepare

pytestmark = optional.needs("openvino")

CPU = Device.parse("openvino")


@pytest.fixture
def _afresh():
    """The test imports OpenVINO and opens its core as if for the first time."""
    library.import_openvino.cache_clear()
    library.openvino_core.cache_clear()
    yield
    library.import_openvino.cache_clear()
    library.openvino_core.cache_clear()


@pytest.mark.usefixtures("_afresh")
def test_a_missing_package_is_a_device_error(make_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(DeviceError, match="OpenVINO does not load") as caught:
        open_backend("openvino", prepare(make_model()))
    assert caught.value.exit_code == 5
    assert 'pip install "detcli[openvino]"' in caught.value.hint


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ({"__version__": "2024.6.0-1-x"}, r"2024.6.0-1-x is older than 2026\.4"),
        ({}, "without a version is older"),  # an empty folder
    ],
)
@pytest.mark.usefixtures("_afresh")
def test_an_old_version_is_refused(package, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(**package))
    with pytest.raises(DeviceError, match=message) as caught:
        library.import_openvino()
    assert "--upgrade" in caught.value.hint


NO_LIBRARY = """Exception from src/inference/src/cpp/core.cpp:268:
Cannot load library "/home/me/x/libopenvino_intel_gpu_plugin.so": libOpenCL.so.1: cannot open
"""
NO_NPU = """Exception from src/plugins/plugin_property_manager.cpp:732:
Unsupported configuration key: FULL_DEVICE_NAME

"""


@pytest.mark.parametrize(
    ("device", "openvino_message", "message", "hint"),
    [
        ("openvino:GPU", NO_LIBRARY, "libOpenCL.so.1: cannot open", "intel-opencl-icd"),
        ("openvino:NPU", NO_NPU, "none was found", "driver of Intel's NPU"),
        ("openvino:GPU.7", "no such device", "no such device", "driver"),
        ("openvino:CPU", "no plug-in", "no plug-in", "--device cpu"),
    ],
)
def test_a_missing_device_is_named_with_what_installs_it(
    device, openvino_message, message, hint, monkeypatch
):
    absent = SimpleNamespace(get_property=mock.Mock(side_effect=RuntimeError(openvino_message)))
    monkeypatch.setattr(library, "openvino_core", lambda: absent)
    with pytest.raises(DeviceError) as caught:
        open_core(Device.parse(device))
    assert device.removeprefix("openvino:") in str(caught.value)
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_reasons_are_one_line_without_source_files():
    openvino_message = (
        "Exception from src/inference/src/cpp/core.cpp:105:\n"
        "Check 'false' failed at src/frontends/unconverted_ops_report.cpp:151:\n"
        "Model wasn't fully converted.\n-- No conversion rule found for operations: MaxFool-18\n\n"
    )
    expected = (
        "Model wasn't fully converted. -- No conversion rule found for operations: MaxFool-18"
    )
    assert reason(RuntimeError(openvino_message)) == expected
    assert reason(MemoryError()) == "out of memory"


def in_a_process(code):
    process = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return process.stdout.split()


def test_the_converter_and_its_telemetry_are_imported_when_they_are_called():
    loaded = in_a_process(
        "import sys\n"
        "from detcli.backend.openvino.library import import_openvino\n"
        "import_openvino()\n"
        "print(*(name for name in sys.modules if name.startswith('openvino')))\n"
    )
    assert "openvino._pyopenvino" in loaded
    assert not [
        name for name in loaded if name.startswith(("openvino_telemetry", "openvino.tools."))
    ]
    output = in_a_process(
        "from detcli.backend.openvino.library import import_openvino\n"
        "try:\n"
        "    import_openvino().convert_model('no-such-file')\n"
        "except Exception as error:\n"
        "    print(type(error).__module__)\n"
        "from openvino.tools.ovc import convert_model\n"
        "print(convert_model.__module__)\n"
    )
    assert output[0].startswith("openvino")
    assert output[1].startswith("openvino.tools")


def test_a_converter_that_is_imported_already_stays():
    output = in_a_process(
        "import openvino\n"
        "before = openvino.convert_model\n"
        "from detcli.backend.openvino.library import import_openvino\n"
        "print(import_openvino().convert_model is before)\n"
    )
    assert output == ["True"]


# ---------------------------------------------------------------- networks

LAYERS = """<ir_version: 8, opset_import: ["" : 17]>
small (float[1, 16, 8, 8] given) => (float[1, 16, 6, 6] made)
{
    weights = Constant <value_floats = [%s]> ()
    shape = Constant <value_ints = [16, 16, 3, 3]> ()
    shaped = Reshape (weights, shape)
    made = Conv (given, shaped)
}"""


def convolution():
    """A graph with one convolution."""
    values = np.random.default_rng(0).random(16 * 16 * 9).round(4)
    return onnx.parser.parse_model(LAYERS % ", ".join(map(str, values))).SerializeToString()


def has_bf16():
    try:
        return choose_precision(open_core(CPU), "CPU", half=True) == "bf16"
    except DeviceError:
        return False


def test_float32_means_float32_and_half_is_bfloat16_or_refused():
    """OpenVINO's own default is half precision, where the processor has it."""
    assert open_network(convolution(), "m", CPU, DeviceOptions())[1] == "f32"
    if has_bf16():
        assert open_network(convolution(), "m", CPU, DeviceOptions(half=True))[1] == "bf16"
        return
    with pytest.raises(DeviceError, match="--half would be slower"):
        open_network(convolution(), "m", CPU, DeviceOptions(half=True))


@pytest.mark.parametrize("half", [False, True])
def test_what_is_checked_is_float32(half, cache):
    """A wrong translation shows in any precision, but half precision differs by itself."""
    if half and not has_bf16():
        pytest.skip("this processor does not multiply in bfloat16")
    checked = []
    options = DeviceOptions(half=half)
    _, precision = open_network(convolution(), "m", CPU, options, checked.append)
    assert list(map(precision_of, checked)) == ["f32"]
    assert precision == ("bf16" if half else "f32")
    open_network(convolution(), "m", CPU, options, checked.append)
    assert len(checked) == len(list(cache.rglob("*.openvino"))) == 1


class Core:
    """Stands for a core whose device lists these capabilities."""

    def __init__(self, *capabilities):
        self.capabilities = list(capabilities)

    def get_property(self, *_):
        return self.capabilities

    def compile_model(self, *_):
        raise RuntimeError("Supported primitive descriptors list is empty")


@pytest.mark.parametrize(
    ("unit", "half", "capabilities", "precision", "hint"),
    [
        ("GPU", False, ["FP32", "FP16"], "f32", None),
        ("GPU.1", True, ["FP32", "FP16"], "f16", None),
        ("NPU", True, ["FP16", "INT8"], "f16", None),
        ("CPU", False, ["BF16", "FP32"], "f32", None),
        ("CPU", True, ["FP32"], "--half would be slower", "leave it out"),
        ("CPU", True, ["FP32", "BF16"], "--half would be slower", "int8"),
        ("NPU", False, ["FP16", "INT8"], "does not compute in f32, but in FP16, INT8", "--half"),
        ("GPU", True, ["FP32"], "GPU does not compute in f16", "leave --half out"),
    ],
)
def test_the_precision_of_each_device(unit, half, capabilities, precision, hint):
    """One that the device lacks is refused."""
    if hint is None:
        assert choose_precision(Core(*capabilities), unit, half=half) == precision
        return
    with pytest.raises(DeviceError, match=precision) as caught:
        choose_precision(Core(*capabilities), unit, half=half)
    assert hint in caught.value.hint


def layers(*entries):
    """Stands for a compiled network whose layers have these kinds, precisions and kernels."""
    names = ("layerType", "runtimePrecision", "primitiveType")
    nodes = []
    for entry in entries:
        info = {
            name: SimpleNamespace(astype=lambda _, value=value: value)
            for name, value in zip(names, entry, strict=True)
        }
        nodes.append(SimpleNamespace(get_rt_info=lambda info=info: info))
    return SimpleNamespace(
        get_runtime_model=lambda: SimpleNamespace(get_ops=lambda: nodes),
        get_property=lambda name: (
            1 if name.startswith("OPTIMAL") else SimpleNamespace(get_type_name=lambda: "f16")
        ),
    )


@pytest.mark.parametrize(
    ("compiled", "precision"),
    [
        (layers(("Convolution", "f32", ""), ("Input", "f16", ""), ("Const", "u8", "")), "f32"),
        (layers(*[("Convolution", "u8", "")] * 2, ("MatMul", "bf16", "")), "int8+bf16"),
        (layers(("Convolution", "i8", ""), ("Convolution", "u8", "")), "int8"),
        (layers(*[("Pooling", "f32", "")] * 2, ("Subgraph", "f16", "")), "f32"),
        (layers(("Convolution", "FP16", ""), ("Const", "FP32", "")), "f16"),
        (layers(("Const", "i32", "")), "f16"),
    ],
)
def test_the_precision_is_that_of_the_layers_which_multiply(compiled, precision):
    assert precision_of(compiled) == precision


def test_float32_that_runs_in_half_precision_is_refused(monkeypatch):
    compiled = layers(("Convolution", "bf16", ""))
    monkeypatch.setattr(network, "_read_or_compile", lambda *_: compiled)
    with pytest.raises(DeviceError, match="OpenVINO runs m in bf16 on CPU, though float32"):
        open_network(b"", "m", CPU, DeviceOptions())


@pytest.mark.parametrize("isa", ["AVX512_CORE", "AVX2"])
def test_a_processor_without_bfloat16(isa, detcli, make_model, make_image):
    """oneDNN, which OpenVINO computes with, takes a lesser processor from ONEDNN_MAX_CPU_ISA."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    arguments = ["predict", make_image("a.png", ("red", 2, 3)), "-m", make_model()]
    usual = detcli(*arguments, "--device", "cpu")
    lesser = detcli(*arguments, "--device", "openvino", env=environment)
    assert lesser.returncode == 0, lesser.stderr
    assert lesser.stdout == usual.stdout.replace('"cpu"', '"openvino:CPU", "precision": "f32"')
    refused = detcli(*arguments, "--device", "openvino", "--half", env=environment)
    assert refused.returncode == 5
    assert "this processor does not multiply in bfloat16" in refused.stderr


@pytest.mark.parametrize(
    ("shape", "precision", "refused"),
    [
        ([-1, 3, -1, 64], "int8+f32", True),
        ([-1, 3, 64, 64], "int8", False),
        ([-1] * 4, "f32", False),
    ],
)
def test_networks_in_8_bits_of_free_size_are_refused(
    shape, precision, refused, make_model, monkeypatch
):
    openvino = optional.require("openvino")
    model_input = SimpleNamespace(get_partial_shape=lambda: openvino.PartialShape(shape))
    compiled = SimpleNamespace(input=lambda _: model_input, get_property=lambda _: 1)
    monkeypatch.setattr(package, "open_network", lambda **_: (compiled, precision))
    arguments = prepare(make_model()), Device.parse("openvino"), DeviceOptions()
    with pytest.raises(ModelError, match="8 bits") if refused else contextlib.nullcontext():
        package.open_backend(*arguments)


@pytest.mark.slow
def test_int8_models_run_in_int8(shared):
    model = prepare(shared("models/yolov8n-320-int8.onnx"))
    backend = open_backend("openvino", model)
    assert backend.precision.split("+")[0] == "int8"
    assert "bf16" not in backend.precision
    backend.close()


@pytest.fixture
def compiled(monkeypatch):
    """The configurations that networks are compiled in, as opposed to read from the cache."""
    networks = []
    core = open_core(CPU)

    class Counting:
        def compile_model(self, model, unit, config):
            networks.append(config["INFERENCE_PRECISION_HINT"])
            return core.compile_model(model, unit, config)

        def __getattr__(self, name):
            return getattr(core, name)

    monkeypatch.setattr(network, "open_core", lambda _: Counting())
    return networks


def test_a_second_start_compiles_nothing(cache, compiled):
    graph = convolution()
    for workers in (1, 1, 8):
        options = DeviceOptions(workers=workers)
        assert open_network(graph, "m", CPU, options)[1] == "f32"
    assert compiled == ["f32"]
    (entry,) = (cache / "prepared").glob("*.openvino")
    assert entry.stat().st_mode & 0o777 == 0o600
    other_graph = graph.replace(b"made", b"make")
    open_network(other_graph, "m", CPU, DeviceOptions())
    assert compiled == ["f32", "f32"]


def test_each_precision_and_device_has_its_own_entry(cache, compiled, monkeypatch):
    graph = convolution()
    open_network(graph, "m", CPU, DeviceOptions())
    monkeypatch.setattr(network, "choose_precision", lambda *_, **__: "bf16")
    open_network(graph, "m", CPU, DeviceOptions(half=True))
    assert compiled == ["f32", "bf16"]
    assert len(list((cache / "prepared").glob("*.openvino"))) == 2


@pytest.mark.parametrize("spoil", [lambda data: data[:-9], lambda _: b"", lambda data: data[::-1]])
def test_a_damaged_entry_is_compiled_again(spoil, cache, compiled):
    graph = convolution()
    open_network(graph, "m", CPU, DeviceOptions())
    (entry,) = (cache / "prepared").glob("*.openvino")
    content = entry.read_bytes()
    entry.write_bytes(spoil(content))
    open_network(graph, "m", CPU, DeviceOptions())
    assert compiled == ["f32", "f32"]
    assert entry.stat().st_size == len(content)


def test_an_entry_that_openvino_refuses_is_compiled_again(cache, compiled, monkeypatch):
    """As after an update of a driver."""
    monkeypatch.setattr(network, "cached", lambda *_: b"of another release")
    assert open_network(convolution(), "m", CPU, DeviceOptions())[1] == "f32"
    assert compiled == ["f32"]
    assert not cache.exists()


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_cache_that_others_can_write_to_is_not_used(cache, compiled):
    open_network(convolution(), "m", CPU, DeviceOptions())
    (cache / "prepared").chmod(0o777)
    open_network(convolution(), "m", CPU, DeviceOptions())
    assert compiled == ["f32", "f32"]


def test_streams_are_left_to_openvino_within_the_quota(monkeypatch):
    monkeypatch.setattr(network, "visible_cores", lambda: 8)
    monkeypatch.setattr(network, "available_cores", lambda: 8)
    four = DeviceOptions(workers=4)
    assert scheduling(CPU, DeviceOptions()) == {"PERFORMANCE_HINT": "LATENCY"}
    many = {"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": "4"}
    assert scheduling(CPU, four) == many
    shared = {**many, "ENABLE_CPU_PINNING": "NO"}
    assert scheduling(CPU, replace(four, cores=2)) == {**shared, "INFERENCE_NUM_THREADS": "2"}
    monkeypatch.setattr(network, "available_cores", lambda: 3)
    assert scheduling(CPU, four) == {**shared, "INFERENCE_NUM_THREADS": "3"}
    assert scheduling(CPU, replace(four, cores=8)) == {**shared, "INFERENCE_NUM_THREADS": "3"}
    assert scheduling(Device.parse("openvino:GPU"), four) == many


def test_a_quota_limits_the_threads(monkeypatch):
    monkeypatch.setattr(network, "available_cores", lambda: 1)
    compiled, _ = open_network(convolution(), "m", CPU, DeviceOptions(workers=4))
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert compiled.get_property(REQUEST_COUNT) == 1


def test_a_graph_that_openvino_refuses_is_a_model_error(make_model):
    model = make_model()
    model.write_bytes(model.read_bytes().replace(b"AveragePool", b"AverageFool"))
    with pytest.raises(ModelError, match=r"cannot load colours: .*AverageFool") as caught:
        open_backend("openvino", prepare(model))
    assert "--device cpu" in caught.value.hint
    with pytest.raises(ModelError, match="cannot load m"):
        open_tensors("openvino", b"\x08\x01", "m")


def test_a_graph_that_does_not_fit_into_memory(monkeypatch):
    for failure in (MemoryError("std::bad_alloc"), RuntimeError("bad_alloc")):
        monkeypatch.setattr(network, "_read_or_compile", mock.Mock(side_effect=failure))
        with pytest.raises(ModelError, match=r"^m does not fit into memory"):
            open_network(b"", "m", CPU, DeviceOptions())


def test_tensors_of_any_graph_by_name():
    tensors = open_tensors("openvino", convolution(), "m")
    assert tensors.device == "openvino:CPU"
    ones = np.ones((1, 16, 8, 8), np.float32)
    ones.flags.writeable = False
    outputs = tensors.run_watched("given", ones)
    outputs_of_twos = tensors.run_watched("given", ones * 2)
    assert {name: tensor.shape for name, tensor in outputs.items()} == {"made": (1, 16, 6, 6)}
    np.testing.assert_allclose(outputs_of_twos["made"], 2 * outputs["made"], rtol=1e-5)
    with pytest.raises(InferenceError, match=r"\[1, 16, 4\]"):
        tensors.run_watched("given", np.ones((1, 16, 4), np.float32))
