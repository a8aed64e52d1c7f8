"""Options of the GPU providers; ONNX Runtime's documentation explains them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from detcli.backend import providers
from detcli.backend.nvidia import DriverFacts, GpuFacts
from detcli.backend.providers import cuda_provider, profile_of, tensorrt_provider
from detcli.backend.session import CUDA, TENSORRT
from detcli.config.device import DeviceOptions
from detcli.model.contract import Resize
from detcli.model.prepared import PreparedModel, StoredGraph, prepare

LIMITED = DeviceOptions(gpu_mem_limit=2 << 30)


def tensorrt(options=DeviceOptions(), graph=b"graph", *, half=False, profile=()):  # noqa: B008 - frozen
    contract = SimpleNamespace(input_dtype="float32")
    model = PreparedModel("model", contract, StoredGraph.of(graph), half=half)  # type: ignore[arg-type]
    name, provider_options = tensorrt_provider(1, 32512, options, model, dict(profile))
    assert name == TENSORRT
    return provider_options


def test_cuda():
    plain = {
        "device_id": "3",
        "user_compute_stream": "32512",
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    exact = plain | {"use_tf32": "0"}
    limit = {"gpu_mem_limit": "2147483648", "arena_extend_strategy": "kSameAsRequested"}
    for options, graph, expected_more in (
        (DeviceOptions(), False, {}),
        (DeviceOptions(), True, {"enable_cuda_graph": "1"}),
        (LIMITED, False, limit),
    ):
        assert cuda_provider(3, 0x7F00, options, graph=graph) == (CUDA, exact | expected_more)
        # It would keep float16 convolutions from tensor cores, too.
        provider = cuda_provider(3, 0x7F00, options, half=True, graph=graph)
        assert provider == (CUDA, plain | expected_more)


def test_tensorrt_with_caches_in_the_users_cache_folder(cache):
    """Models that differ only in weights have separate engines: their names are the tensors'."""
    provider_options = tensorrt()
    engines = provider_options.pop("trt_engine_cache_path")
    assert provider_options == {
        "device_id": "1",
        "user_compute_stream": "32512",
        "trt_fp16_enable": "False",
        "trt_engine_cache_enable": "True",
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(cache / "tensorrt/unknown"),
    }
    (folder_of_engines,) = (cache / "tensorrt/unknown").iterdir()
    assert str(folder_of_engines) == engines
    assert tensorrt(graph=b"other")["trt_engine_cache_path"] != engines
    assert tensorrt()["trt_engine_cache_path"] == engines


def test_gpus_of_one_capability_have_separate_engines(cache, monkeypatch):
    """TensorRT's provider names both their engines "sm89"."""
    gpus = (GpuFacts("NVIDIA L4", "8.9", 1), GpuFacts("NVIDIA GeForce RTX 4090 (24 GB)", "8.9", 1))
    monkeypatch.setattr(providers, "ask_driver", lambda: DriverFacts(status=0, gpus=gpus))
    folder = cache / "tensorrt/NVIDIA-GeForce-RTX-4090-24-GB-"
    settings_of_second = tensorrt()
    assert settings_of_second["trt_timing_cache_path"] == str(folder)
    assert Path(settings_of_second["trt_engine_cache_path"]).parent == folder
    monkeypatch.setattr(providers, "ask_driver", lambda: DriverFacts(status=0, gpus=gpus[::-1]))
    assert tensorrt()["trt_timing_cache_path"] == str(cache / "tensorrt/NVIDIA-L4")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("options", "half", "option", "expected"),
    [
        (DeviceOptions(half=True), False, "trt_fp16_enable", "True"),
        (DeviceOptions(), True, "trt_fp16_enable", "True"),
        (LIMITED, False, "trt_max_workspace_size", "2147483648"),
    ],
)
def test_tensorrt_in_half_precision_or_with_a_limit(options, half, option, expected):
    assert tensorrt(options, half=half)[option] == expected


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("axes", "shapes"),
    [
        ({"batch": 2}, None),
        ({"batch": None}, ("1x3x64x64", "8x3x64x64", "32x3x64x64")),
        ({"batch": None, "size": None}, ("1x3x96x96", "8x3x96x96", "32x3x96x96")),
        ({"batch": 2, "size": None}, ("2x3x96x96", "2x3x96x96", "2x3x96x96")),
    ],
)
def test_tensorrt_is_told_what_dynamic_axes_will_be(axes, shapes, make_model):
    model = prepare(make_model(**axes))
    if model.contract.input_size is None:
        model = replace(model, canvas=(96, 96))
    contract = model.contract
    profile = profile_of(model)
    expected_profile = {}
    if shapes is not None:
        smallest, usual, largest = shapes
        expected_profile = {
            "trt_profile_min_shapes": f"images:{smallest}",
            "trt_profile_opt_shapes": f"images:{usual}",
            "trt_profile_max_shapes": f"images:{largest}",
        }
    assert profile == expected_profile
    provider_options = tensorrt(profile=profile)
    assert profile.items() <= provider_options.items()
    # What follows the image's own size may be larger than any canvas.
    free = replace(contract.preprocessing, resize=Resize.NONE)
    unbounded = replace(model, contract=replace(contract, preprocessing=free))
    assert contract.input_size or not profile_of(unbounded)
    # an engine of another profile is another engine
    assert bool(profile) == (
        provider_options["trt_engine_cache_path"] != tensorrt()["trt_engine_cache_path"]
    )


def test_tensorrts_size_varies_only_where_narrow_images_have_narrow_inputs(make_model):
    model = replace(prepare(make_model(batch=2, size=None)), canvas=(96, 64))
    assert profile_of(model)["trt_profile_min_shapes"] == "images:2x3x96x64"
    narrows = profile_of(replace(model, narrows=True))
    assert narrows["trt_profile_min_shapes"] == "images:2x3x32x32"
    assert narrows["trt_profile_opt_shapes"] == "images:2x3x96x64"
    without_canvas = replace(model, canvas=None)
    assert profile_of(without_canvas)["trt_profile_min_shapes"] == "images:2x3x32x32"


@pytest.mark.parametrize("images_per_run", [1, 16, 32])
def test_tensorrt_is_fastest_at_the_batch_that_runs(images_per_run, make_model):
    profile = profile_of(prepare(make_model(batch=None)), images_per_run)
    assert profile["trt_profile_opt_shapes"] == f"images:{images_per_run}x3x64x64"
    assert profile["trt_profile_min_shapes"] == "images:1x3x64x64"
    assert profile["trt_profile_max_shapes"] == "images:32x3x64x64"


def test_tensorrt_without_a_cache(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DETCLI_CACHE_DIR", str(tmp_path / "file"))
    caplog.set_level("INFO", "detcli")
    for option in tensorrt():
        assert "cache" not in option
    assert "builds its engine at every start" in caplog.text


@pytest.mark.parametrize("part", ["cache", "all_gpus", "timings", "engines", "engine"])
def test_engines_that_others_may_have_written_are_not_run(cache, part):
    provider_options = tensorrt()
    engines = Path(provider_options["trt_engine_cache_path"])
    engine = engines / "planted.engine"
    engine.touch(0o600)
    assert tensorrt() == provider_options
    paths = {
        "cache": cache,
        "all_gpus": cache / "tensorrt",
        "timings": engines.parent,
        "engines": engines,
        "engine": engine,
    }
    paths[part].chmod(0o777)
    for option in tensorrt():
        assert "cache" not in option
