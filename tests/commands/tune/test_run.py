"""What is tried, in which order, and what becomes of what fails."""

import time

import pytest

from detcli.commands.tune.report import REACH
from detcli.commands.tune.run import images_of
from detcli.core.errors import DeviceError, InferenceError, UsageError

NONE = DeviceError("this machine has no NVIDIA GPU")


@pytest.fixture
def rows(tune, make_model, tuning_images, commands):  # noqa: ARG001
    """Tune the colour model on two images with made answers: its rows by name."""

    def run(*words, **expectations):
        report = tune(make_model(), tuning_images, words, **expectations)
        return {row["name"]: row for row in report["rows"]}

    return run


def names_with(word, names):
    return [name for name in names if word in name]


def started_configurations(commands, command):
    """The configurations for which a command was started, in order."""
    configurations = []
    for name, configuration in commands.asked:
        if name == command:
            configurations.append(configuration)
    return configurations


@pytest.mark.usefixtures("commands")
def test_what_is_simple_comes_first(rows):
    names = []
    names_without_workers = []
    for name, row in rows().items():
        if row["way"]["batch"] is None:
            names.append(name)
            if "workers" not in name:
                names_without_workers.append(name)
    assert names_without_workers == [
        "cpu",
        "cuda",
        "tensorrt",
        "openvino",
        "tensorrt half",
        "openvino half",
        "cpu int8",
        "cuda int8",
        "tensorrt int8",
        "openvino int8",
    ]
    assert names[:4] == ["cpu", "cpu workers 1", "cpu workers 4", "cuda"]


def test_a_device_that_is_not_there_is_one_row(rows, commands):
    commands.failures = {("predict", "cuda"): NONE, ("predict", "tensorrt"): NONE}
    by_name = rows()
    absent = [name for name in by_name if name.startswith(("cuda", "tensorrt"))]
    assert absent == ["cuda", "tensorrt"]
    assert by_name["cuda"]["error"] == "this machine has no NVIDIA GPU"
    assert by_name["cuda"]["many"] is None
    assert by_name["openvino half"]["error"] is None


def test_what_fails_in_the_middle_keeps_what_was_measured(rows, commands):
    commands.failures["bench", "cpu int8 batch 4"] = InferenceError("out of memory: 8 GB")
    row = rows("--device", "cpu")["cpu int8 batch 4"]
    assert row["error"] == "out of memory: 8 GB"
    assert row["boxes"]["equal"] == 1


def test_a_model_that_cannot_be_quantised_is_a_reason(rows, commands):
    commands.failures["convert"] = UsageError("already in 8 bits")
    by_name = rows("--device", "cpu,openvino")
    names = names_with("int8", by_name)
    assert len(names) == 2
    for name in names:
        assert by_name[name]["error"] == "already in 8 bits"
    assert len(started_configurations(commands, "convert")) == 1


def test_without_the_cpu_there_is_nothing_to_compare_with(
    tune, commands, make_model, tuning_images
):
    commands.failures["bench", "cpu"] = InferenceError("too large")
    assert tune(make_model(), tuning_images, code=1, says="too large") == ""


def test_without_images_nothing_is_quantised(tune, commands, make_model):
    report = tune(make_model())
    for row in report["rows"]:
        assert not row["way"]["int8"]
    assert ("predict", "cpu") in commands.asked


def test_only_devices_that_are_named_are_tried(rows):
    by_name = rows("--device", "openvino")
    assert {row["way"]["device"] for row in by_name.values()} == {"cpu", "openvino:CPU"}


def test_a_default_device_does_not_keep_others_out(rows, tmp_path):
    (tmp_path / "detcli.toml").write_text('device = "cpu"\n')
    assert "openvino" in rows()


def test_other_batches_are_tried_where_it_is_worth_it(rows, commands):
    commands.rates = {"cpu": 10, "openvino": 20, "openvino half": 100, "cpu int8": 90}
    commands.disagreeing["openvino half"] = 0.1
    varied = names_with("batch", rows())
    assert sorted(varied) == ["cpu int8 batch 16", "cpu int8 batch 4"]
    assert commands.asked.count(("bench", "cpu int8 batch 4")) == 1  # for many images


def varied_of(rows, device):
    """The other ways that were tried of a device."""
    return [name for name in rows if name.startswith(f"{device} ") and "int8" not in name]


@pytest.mark.parametrize(
    ("cores", "workers"), [(1, []), (2, [1]), (3, [1]), (4, [1, 2]), (8, [1, 4])]
)
def test_fewer_workers_are_tried_on_a_processor(rows, commands, monkeypatch, cores, workers):
    monkeypatch.setattr("detcli.commands.tune.configurations.available_cores", lambda: cores)
    varied = varied_of(rows("--device", "cpu"), "cpu")
    assert names_with("workers", varied) == [f"cpu workers {count}" for count in workers]
    assert commands.asked.count(("predict", "cpu")) == 1


@pytest.mark.parametrize("fast_cores", [{0, 1}, set()])
def test_fast_cores_are_tried_where_there_are_slower_ones(rows, commands, monkeypatch, fast_cores):
    monkeypatch.setattr("detcli.commands.tune.configurations.fastest_cores", lambda: fast_cores)
    by_name = rows("--device", "cpu")
    assert ("cpu fast cores" in by_name) == bool(fast_cores)
    if fast_cores:
        assert by_name["cpu fast cores"]["way"]["fast_cores"] is True
        assert by_name["cpu fast cores"]["one"] is not None
        assert commands.asked.count(("predict", "cpu fast cores")) == 1


def test_the_choice_of_fast_cores_names_their_option(commands, monkeypatch, tune, make_model):
    monkeypatch.setattr("detcli.commands.tune.configurations.fastest_cores", lambda: {0})
    commands.rates = {"cpu fast cores": 20.0}
    report = tune(make_model(), "--device", "cpu")
    many = report["choices"][0]
    assert many["options"] == {"device": "cpu", "fast_cores": True}
    assert "--fast-cores" in many["command"]


def test_a_warm_up_takes_a_sixtieth_of_the_budget_at_most(tune, commands, make_model, monkeypatch):
    limits = []
    answer = commands.bench

    def bench(way_name, options):
        limits.append(options[options.index("--max-warm-up") + 1])
        return answer(way_name, options)

    monkeypatch.setattr(commands, "bench", bench)
    tune(make_model(), "--device", "cpu", "--budget", "60s")
    assert set(limits) == {"1.0"}


@pytest.mark.usefixtures("commands")
def test_a_gpu_has_one_worker_and_other_batches(rows):
    assert varied_of(rows("--device", "cuda"), "cuda:0") == [
        "cuda:0 batch 4",
        "cuda:0 batch 16",
    ]


@pytest.mark.parametrize(
    ("usual", "other_sizes"), [(1, [4, 16]), (4, [1, 16]), (16, [1, 4]), (8, [1, 4, 16])]
)
def test_the_usual_batch_is_not_tried_again(rows, commands, monkeypatch, usual, other_sizes):
    answer = commands.bench

    def bench(way_name, options):
        report = answer(way_name, options)
        report["conditions"]["batch"] = usual
        return report

    monkeypatch.setattr(commands, "bench", bench)
    varied = varied_of(rows("--device", "cuda"), "cuda:0")
    assert varied == [f"cuda:0 batch {size}" for size in other_sizes]


@pytest.mark.parametrize(("rate", "is_varied"), [(100 / REACH, True), (99 / REACH, False)])
def test_a_way_within_reach_of_the_fastest_is_varied(rows, commands, rate, is_varied):
    commands.rates = {"cpu": rate, "cuda:0": 100.0}
    by_name = rows("--device", "cpu,cuda")
    assert ("cpu batch 4" in by_name) == is_varied


def test_a_half_that_has_no_device_leaves_the_8_bits(rows, commands):
    """Only where a device does not run the model as it is are its other ways left out."""
    commands.failures["predict", "openvino half"] = NONE
    by_name = rows()
    assert by_name["openvino half"]["error"] == str(NONE)
    assert by_name["openvino int8"]["error"] is None


def test_a_model_that_fails_on_a_device_leaves_its_other_ways(rows, commands):
    commands.failures["predict", "openvino"] = InferenceError("too large")
    by_name = rows()
    assert by_name["openvino"]["error"] == "too large"
    assert by_name["openvino half"]["error"] is None


def test_what_changes_boxes_is_not_varied(rows, commands):
    commands.disagreeing["cuda"] = 0.1
    by_name = rows()
    assert varied_of(by_name, "cuda") == []
    assert "cuda int8 batch 4" in by_name


def test_what_may_be_the_fastest_is_measured_in_turns(rows, commands):
    commands.rates = {"cpu": 10.0, "openvino": 10.1, "cpu int8": 1.0}
    by_name = rows("--device", "cpu,openvino")
    assert len(by_name["cpu"]["many"]["turns"]) == 3
    assert len(by_name["cpu int8"]["many"]["turns"]) == 1
    last_configurations = started_configurations(commands, "bench")[-4:]
    assert len(set(last_configurations)) == 4  # one after the other, not one thrice


def test_a_fastest_way_that_is_certain_is_measured_once(rows, commands):
    commands.rates = {
        "cpu": 10.0,
        "openvino:CPU": 100.0,
        "openvino:CPU batch 4": 50,
        "openvino:CPU batch 16": 50,
        "openvino:CPU workers 1": 50,
    }
    by_name = rows("--device", "openvino", "--tolerance", "boxes=0")
    assert len(by_name["openvino:CPU"]["many"]["turns"]) == 1


@pytest.fixture
def short(commands, monkeypatch):
    """As soon as OpenVINO is reached, all the time is over."""
    begun = time.monotonic()
    late = [0.0]
    monkeypatch.setattr("detcli.commands.tune.run.time.monotonic", lambda: begun + late[0])

    def ended(tuning, way_name):
        if way_name.startswith("openvino"):
            late[0] = 1000.0
        return tuning.left_s <= 0

    commands.ended = ended
    return "--budget", "5m", "--device", "cpu,openvino"


def test_the_budget_ends_the_run(rows, short):
    by_name = rows(short, says="warning: the time ended first: give more, as in --budget 15min")
    assert by_name["cpu"]["error"] is None
    assert by_name["openvino:CPU"]["error"] == "the time ended first"
    assert by_name["cpu int8"]["error"] == "the time ended first"
    assert "cpu batch 4" not in by_name


def test_a_choice_of_what_the_time_left_is_not_written(
    tune, short, make_model, tuning_images, tmp_path
):
    says = "the choice is not written: the time ended before openvino:CPU, openvino:CPU half, cpu"
    tune(make_model(), tuning_images, short, "--write", code=6, says=says)
    assert not (tmp_path / "detcli.toml").read_text()


def test_few_boxes_are_a_doubt(tune, make_model, tuning_images, commands):
    for pairs, reasons in ((200, []), (199, ["only 199 boxes were compared"])):
        commands.pairs = pairs
        doubts = tune(make_model(), tuning_images, "--device", "cpu")["doubts"]
        assert len(doubts) == len(reasons)
        for doubt, reason in zip(doubts, reasons, strict=True):
            assert reason in doubt


def test_a_single_way_is_compared_with_nothing(tune, make_model, tuning_images, commands):
    for name in ("predict", "convert"):
        for configuration in ("cuda", "tensorrt", "openvino"):
            commands.failures[name, configuration] = NONE
    commands.failures["convert"] = UsageError("already in 8 bits")
    for size in ("batch 4", "batch 16", "workers 1", "workers 4"):
        commands.failures["bench", f"cpu {size}"] = InferenceError("out of memory: 8 GB")
    says = "warning: nothing was compared: cpu is the only way that was measured"
    report = tune(make_model(), tuning_images, says=says)
    assert report["doubts"] == ["nothing was compared: cpu is the only way that was measured"]
    measured_names = []
    for row in report["rows"]:
        if row["many"]:
            measured_names.append(row["name"])
    assert measured_names == ["cpu"]


def test_a_comparison_is_no_doubt(tune, make_model, tuning_images, commands):  # noqa: ARG001
    assert tune(make_model(), tuning_images, "--device", "cpu")["doubts"] == []


def test_labels_add_map(rows, commands, tmp_path):
    (tmp_path / "data.yaml").touch()
    by_name = rows("--device", "cpu", "--data", tmp_path / "data.yaml")
    assert by_name["cpu"]["map50_95"] == by_name["cpu int8"]["map50_95"] == 0.5
    assert ("eval", "cpu int8 batch 4") not in commands.asked


@pytest.mark.parametrize(
    ("data", "image", "folder"),
    [
        ("data.yaml", "images/val/a.png", "images/val"),
        ("instances.json", "images/a.png", "images"),
        ("set", "set/images/a.png", "set/images"),
        ("set", "set/a.png", "set"),
    ],
)
def test_images_of_labels(tmp_path, data, image, folder):
    (tmp_path / image).parent.mkdir(parents=True)
    assert images_of(tmp_path / data) == (str(tmp_path / folder),)


def test_labels_alone(tune, commands, make_model, make_image, tmp_path):
    (tmp_path / "data.yaml").touch()
    tune(make_model(), "--data", "data.yaml", code=2, says="name them: IMAGES...")
    make_image("images/a.png")
    tune(make_model(), "--data", "data.yaml")
    assert ("convert", "") in commands.asked  # there is something to calibrate on
