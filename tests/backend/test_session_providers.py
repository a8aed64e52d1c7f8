"""Options of the GPU providers; ONNX Runtime's documentation explains them."""

from pathlib import Path

import pytest

from detcli.backend.session import cuda_provider, tensorrt_provider
from detcli.core.device import DeviceOptions

GIB = 1 << 30
LIMITED = DeviceOptions(gpu_mem_limit=2 * GIB)


def test_cuda():
    assert cuda_provider(3, 0x7F00, DeviceOptions(), graph=False) == (
        "CUDAExecutionProvider",
        {
            "device_id": "3",
            "user_compute_stream": "32512",
            "cudnn_conv_algo_search": "HEURISTIC",
            "use_tf32": "0",
        },
    )


def test_cuda_graphs_and_a_limit():
    _, plain = cuda_provider(0, 1, DeviceOptions(), graph=False)
    _, graph = cuda_provider(0, 1, DeviceOptions(), graph=True)
    _, limited = cuda_provider(0, 1, LIMITED, graph=False)
    assert graph == plain | {"enable_cuda_graph": "1"}
    assert limited == plain | {
        "gpu_mem_limit": "2147483648",
        "arena_extend_strategy": "kSameAsRequested",
    }


def test_tensorrt_with_caches_in_the_users_cache_folder(cache):
    name, told = tensorrt_provider(1, 32512, DeviceOptions(), b"graph", "float32")
    engines = told.pop("trt_engine_cache_path")
    assert (name, told) == (
        "TensorrtExecutionProvider",
        {
            "device_id": "1",
            "user_compute_stream": "32512",
            "trt_fp16_enable": "False",
            "trt_engine_cache_enable": "True",
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": str(cache / "tensorrt"),
        },
    )
    assert [str(path) for path in (cache / "tensorrt").iterdir()] == [engines]


@pytest.mark.usefixtures("cache")
def test_models_that_differ_only_in_weights_have_separate_engines():
    """ONNX Runtime names an engine after the graph's tensors."""
    paths = {
        tensorrt_provider(0, 1, DeviceOptions(), graph, "float32")[1]["trt_engine_cache_path"]
        for graph in (b"graph 1", b"graph 2", b"graph 1")
    }
    assert len(paths) == 2


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("options", "dtype", "option", "expected"),
    [
        (DeviceOptions(), "float32", "trt_fp16_enable", "False"),
        (DeviceOptions(half=True), "float32", "trt_fp16_enable", "True"),
        (DeviceOptions(), "float16", "trt_fp16_enable", "True"),
        (LIMITED, "float32", "trt_max_workspace_size", "2147483648"),
    ],
)
def test_tensorrt_in_half_precision_or_with_a_limit(options, dtype, option, expected):
    _, told = tensorrt_provider(0, 1, options, b"", dtype)
    assert told[option] == expected


def test_tensorrt_without_a_cache(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DETCLI_CACHE_DIR", str(tmp_path / "file"))
    caplog.set_level("INFO", "detcli")
    _, told = tensorrt_provider(0, 1, DeviceOptions(), b"", "float32")
    assert not any("cache" in option for option in told)
    assert "builds its engine at every start" in caplog.text


@pytest.mark.parametrize("part", ["cache", "timings", "engines", "engine"])
def test_engines_that_others_may_have_written_are_not_run(cache, part):
    _, told = tensorrt_provider(0, 1, DeviceOptions(), b"", "float32")
    engines = Path(told["trt_engine_cache_path"])
    engine = engines / "planted.engine"
    engine.touch(0o600)
    assert tensorrt_provider(0, 1, DeviceOptions(), b"", "float32")[1] == told
    places = {"cache": cache, "timings": engines.parent, "engines": engines, "engine": engine}
    places[part].chmod(0o777)
    _, told = tensorrt_provider(0, 1, DeviceOptions(), b"", "float32")
    assert not {name for name in told if "cache" in name}
