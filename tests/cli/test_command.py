"""The user's defaults: the command line wins over variables, these over the file."""

import dataclasses
import os
import sys
from pathlib import Path

import forked
import pytest
import typer.main
from typer.testing import CliRunner

from detcli.cli.app import app
from detcli.cli.command import Command, command
from detcli.cli.defaults import COMMAND_LINE, defaults_file, read_defaults
from detcli.config.config import Config, Runtime, Settings
from detcli.config.option import option, options_of, values_of
from detcli.core.errors import UsageError

GROUPS = tuple(one.type for one in dataclasses.fields(Config))


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv("DETCLI_DEVICE")


@pytest.fixture
def write_defaults(tmp_path, monkeypatch):
    """Write the user's file of defaults."""
    path = tmp_path / "detcli.toml"
    monkeypatch.setenv("DETCLI_CONFIG", str(path))

    def write(text):
        path.write_text(text, encoding="utf-8")
        return path

    write.path = path  # type: ignore[attr-defined]
    return write


def written(config):
    options = options_of(Config)
    fields = {}
    for name, value in values_of(config).items():
        fields[name] = options[name].to_json(value)
    return fields


def config_of(*arguments, groups=GROUPS, all_configurable=True):
    """The values that predict, or another command, would get, as they are written in JSON."""
    configs = []

    @command(*groups, all_configurable=all_configurable)
    def probe(config: Config) -> None:
        configs.append(written(config))

    run(probe, arguments)
    return configs[0]


def run(probe, *arguments):
    alone = typer.Typer(add_completion=False)
    alone.command("predict", cls=Command)(probe)
    typer.main.get_command(alone)(forked.words_of(arguments), standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "variable", "file", "expected"),
    [
        (["-m", "yolov10n"], "set", 'model = "written"', "yolov10n"),
        ([], "set", 'model = "written"', "set"),
        ([], "", 'model = "written"', "written"),
        ([], "", "", "yolov10n"),
    ],
)
def test_what_is_closer_wins(arguments, variable, file, expected, write_defaults, monkeypatch):
    write_defaults(file)
    monkeypatch.setenv("DETCLI_MODEL", variable)
    assert config_of("a.jpg", arguments)["model"] == expected


def test_the_example_of_the_documentation_is_valid(write_defaults):
    page = Path(__file__).parents[2] / "docs/configuration.md"
    text = page.read_text(encoding="utf-8")
    write_defaults(text.partition("```toml\n")[2].partition("```")[0])
    values = config_of("a.jpg")
    assert values["model"] == str(Path("~/models/parking.onnx").expanduser())
    assert values["device"] == ["cpu"]
    assert values["conf"] == 0.4
    assert values["classes"] == ["person", "car"]


def test_every_option_of_predict_can_have_a_default(write_defaults, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_defaults(
        'conf = 0.4\nmax-det = 7\nclasses = "person,car"\nrecursive = true\ncuda-graph = false\n'
        'nms = 1\nsave = "~/out"\nformat = "csv"\nfail-if = ["any>3", "person>0"]\nverbose = 1\n'
    )
    expected = {
        "conf": 0.4,
        "max_det": 7,
        "classes": ["person", "car"],
        "recursive": True,
        "cuda_graph": False,
        "nms": 1.0,
        "save": str(tmp_path / "out"),
        "format": "csv",
        "fail_if": ["any>3", "person>0"],
        "verbose": 1,
    }
    values = config_of("a.jpg")
    assert values == values | expected


def test_the_command_line_undoes_any_flag_of_the_file(write_defaults):
    switches = [option for option in options_of(Config).values() if option.value_type is bool]
    assert len(switches) > 15
    for switch in switches:  # each with what it needs
        needs = {"null": 'files-from = "l"', "force": 'resume = "j"'}
        needs |= {"save_conf": 'save-txt = "d"', "only_detections": 'save = "d"'}
        needs["report_link"] = 'report = "p"'
        needs["crop_square"] = 'save-crops = "d"'
        folder = '\noutput = "o/"' if switch.name in {"extend", "retry_failed"} else ""
        write_defaults(f"{switch.flag[2:]} = true\n{needs.get(switch.name, '')}{folder}")
        assert config_of("a.jpg")[switch.name] is True
        assert config_of("a.jpg", f"--no-{switch.flag[2:]}")[switch.name] is False
    write_defaults("")
    typed_values = config_of("a.jpg", "--no-recursive", "-r", "--no-strict", "--strict")
    assert typed_values["recursive"] is True
    assert typed_values["strict"] is True
    assert config_of("a.jpg", "--no-force")["force"] is False


def test_other_commands_take_the_model_and_the_device(write_defaults, monkeypatch):
    write_defaults('model = "written"\ndevice = "cuda:1"\nconf = 0.9\nmax-det = 3\nhalf = true')
    values = config_of(groups=(Runtime, Settings), all_configurable=False)
    assert values["model"] == "written"
    assert values["device"] == ["cuda:1"]
    for name in ("conf", "max_det", "half"):
        assert values[name] == options_of(Config)[name].default
    monkeypatch.setenv("DETCLI_DEVICE", "cpu")
    assert config_of(groups=(Runtime,), all_configurable=False)["device"] == ["cpu"]


def test_an_option_of_its_own_has_no_default(write_defaults, monkeypatch):
    """The device that doctor requires is not the one that the user prefers."""
    write_defaults('device = "cuda"')
    monkeypatch.setenv("DETCLI_DEVICE", "cuda")
    devices = []

    @command()
    def probe(
        device: str | None = option(None, "--device DEVICE", "", affects_detections=False),
    ) -> None:
        devices.append(device)

    run(probe)
    run(probe, "--device", "cpu")
    assert devices == [None, "cpu"]


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("modle = 1", "no option 'modle'", "did you mean model?"),
        ("max_det = 1", "no option 'max_det'", "did you mean max-det?"),
        (
            "[predict]\nconf = 1",
            "no option 'predict'",
            "remove the line [predict]; the file has no",
        ),
        ("help = true", "no option 'help'", "the names are those of predict's options"),
        ("conf = true", "conf must be a text or a number, not True", "correct the file"),
        ("max-det = 2.5", "max-det must be a whole number", "correct"),
        ("max-det = true", "max-det must be a whole number", "correct"),
        ("fps = '1'", "fps must be a number", "correct"),
        ("recursive = 'yes'", "recursive must be true or false", "correct"),
        ("fail-if = 'any>0'", "fail-if must be a list of texts", "write fail-if = ['any>0']"),
        ("fail-if = [1]", "fail-if must be a list of texts", "correct the file"),
        ("save = 1979-05-27", "save must be a text, not", "correct"),
        ("conf", "not TOML", "correct or remove"),
        ("x = " + "[" * 5000, "not TOML", "correct or remove"),
        ("\udcff", "cannot be used", "correct or remove"),
    ],
)
def test_a_mistake_in_the_file_is_refused_and_names_it(text, says, hint, write_defaults):
    path = write_defaults("")
    path.write_bytes(text.encode(errors="surrogateescape"))
    for groups in (GROUPS, (Runtime,)):
        with pytest.raises(UsageError, match=says) as caught:
            config_of(groups=groups, all_configurable=groups is GROUPS)
        assert str(path) in str(caught.value)
        assert caught.value.hint.startswith(hint)


def test_a_broken_file_does_not_keep_help_from_being_read(write_defaults):
    write_defaults("nonsense")
    for arguments in (["--help"], ["predict", "--help"], ["models", "--help"], ["schema"]):
        assert CliRunner().invoke(app, arguments).exit_code == 0


@pytest.mark.parametrize(
    ("text", "variable", "says"),
    [
        ("max-pixels = 0", "cpu", "--max-pixels is from FILE"),
        ("conf = 'abc'", "cpu", "--conf is from FILE"),
        ("device = 'banana'", "", "--device is from FILE"),
        ("device = 'cpu'", "banana", "--device is from DETCLI_DEVICE"),
        ("device = 'cuda:99'", "", "--device is from FILE"),
    ],
)
def test_an_error_about_a_default_names_its_origin(
    text, variable, says, write_defaults, monkeypatch
):
    path = write_defaults(text)
    monkeypatch.setenv("DETCLI_DEVICE", variable)
    result = CliRunner().invoke(app, ["predict", "a.jpg", "-m", "codes"])
    assert result.exit_code == (5 if "cuda" in text else 2)
    assert says.replace("FILE", str(path)) in result.stderr
    typed = CliRunner().invoke(app, ["predict", "a.jpg", "--device", "nonsense", "-m", "codes"])
    assert "nonsense" not in typed.stderr or "--device is from" not in typed.stderr


def test_a_variable_that_sets_nothing_is_reported(invoke, monkeypatch):
    monkeypatch.setenv("DETCLI_CONF", "0.9")
    stderr = invoke("predict", "none.png", "-m", "none.onnx").stderr
    assert (
        "variable DETCLI_CONF sets nothing; those that do are DETCLI_MODEL, DETCLI_DEVICE" in stderr
    )
    assert stderr.count("sets nothing") == 1
    assert "sets nothing" not in invoke("predict", "none.png", "-m", "none.onnx", "-q").stderr


def test_without_a_file_there_are_no_defaults(tmp_path, monkeypatch):
    monkeypatch.delenv("DETCLI_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = defaults_file()
    assert path.name == "detcli.toml"
    if sys.platform == "linux":
        assert path == tmp_path / "detcli/detcli.toml"
        assert config_of("a.jpg")["model"] == "yolov10n"


def test_a_file_that_is_named_must_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("DETCLI_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match=r"none\.toml does not exist"):
        config_of("a.jpg")


def test_a_default_without_what_it_needs_is_for_other_runs(write_defaults):
    write_defaults('blur-with = "fill"\nformat = "csv"')
    assert config_of("a.jpg")["blur_with"] == "blur"
    assert config_of("a.jpg", "--blur", "person", "--read")["blur_with"] == "fill"
    assert config_of("a.jpg")["format"] == "csv"
    assert config_of("a.jpg", "--resume", "j")["format"] is None
    for typed in ("fill", "blur"):
        with pytest.raises(UsageError, match="--blur-with needs --blur"):
            config_of("a.jpg", "--blur-with", typed)
    write_defaults('blur = "person"\nblur-with = "fill"\nquiet = true')
    assert config_of("a.jpg")["blur"] == []
    assert config_of("a.jpg")["blur_with"] == "blur"
    assert config_of("a.jpg", "--show")["blur_with"] == "fill"
    assert config_of("a.jpg", "-v")["quiet"] is False
    write_defaults('save-coco = "coco.json"')
    with pytest.raises(UsageError, match="this run only") as caught:
        config_of("a.jpg", "--resume", "j")
    assert caught.value.hint.endswith(f"(--save-coco is from {write_defaults.path})")


@pytest.mark.parametrize(
    ("default", "line", "left"),
    [
        ('format = "table"', "-o t.jsonl", None),
        ('format = "csv"', "-o s3://bucket/y.JSON", None),
        ('format = "csv"', "-o out", "csv"),
        ('format = "csv"', "-o y.json --format table", "table"),
        ('format = "jsonl"', "-o parts/", "jsonl"),
        ("vid-stride = 2", "--every 5s", 1),
        ('every = "5s"', "--vid-stride 2", None),
        ('output = "x.csv"', "--resume j", None),
        ('resume = "j"', "-o x.csv", None),
        ("follow = true", "--fail-if any>0", False),
        ("report-link = true", "--report p --blur person", False),
    ],
)
def test_a_default_gives_way_to_what_contradicts_it_on_the_line(
    write_defaults, default, line, left
):
    write_defaults(default)
    name = default.partition(" ")[0].replace("-", "_")
    assert config_of("a.jpg", line.split())[name] == left


def test_what_a_default_hides_is_never_shown(write_defaults):
    write_defaults('blur = "person"')
    with pytest.raises(UsageError, match="would hide nothing"):
        config_of("a.jpg", "--report", "p", "--report-link")


def test_what_is_typed():
    typed = (
        "a.jpg b.jpg --conf 0.5,car=0.1 -r --no-strict --zone a=0,0,1,0,1,1 --zone b=0,0,1,0,1,0.5 "
        "-vv --classes=a,b --tile 640 --cuda-graph -o x.jsonl --device cpu,cuda:1 "
        "--gpu-mem-limit 2GiB"
    )
    expected = {
        "source": ["a.jpg", "b.jpg"],
        "recursive": True,
        "device": ["cpu", "cuda:1"],
        "cuda_graph": True,
        "gpu_mem_limit": 2 << 30,
        "conf": 0.5,
        "classes": ["a", "b"],
        "class_conf": [["car", 0.1]],
        "tile": "640,overlap=0.2",
        "zone": ["a=0,0,1,0,1,1", "b=0,0,1,0,1,0.5"],
        "output": "x.jsonl",
        "verbose": 2,
    }
    built_in = written(Config())
    values = config_of(typed.split())
    assert {name: value for name, value in values.items() if value != built_in[name]} == expected


@pytest.mark.parametrize("name", ["/dev/null", "NUL"])
def test_a_null_device_sets_nothing_on_any_system(monkeypatch, name):
    monkeypatch.setattr(os, "devnull", "nul")  # Windows'
    monkeypatch.setenv("DETCLI_CONFIG", name)
    assert read_defaults() == {}


def sources_of(*arguments):
    """Where a command is told that its values come from, by option."""
    sources = []

    @command(*GROUPS, all_configurable=True)
    def probe(config: Config, value_sources: dict[str, str]) -> None:
        assert config is not None
        sources.append(value_sources)

    run(probe, arguments)
    return sources[0]


def test_the_origin_of_a_value_that_was_typed_is_the_command_line(write_defaults, monkeypatch):
    write_defaults("device = 'cpu'")
    monkeypatch.setenv("DETCLI_DEVICE", "openvino")
    assert sources_of("a.jpg", "--device", "cuda")["device"] == COMMAND_LINE


def test_the_origin_of_a_variable_is_its_name(write_defaults, monkeypatch):
    write_defaults("device = 'cpu'")
    monkeypatch.setenv("DETCLI_DEVICE", "openvino")
    assert sources_of("a.jpg")["device"] == "DETCLI_DEVICE"


def test_the_origin_of_an_entry_of_the_file_is_its_path(write_defaults):
    path = write_defaults("device = 'cpu'\nconf = 0.5")
    value_sources = sources_of("a.jpg")
    assert value_sources["device"] == str(path)
    assert value_sources["conf"] == str(path)


def test_an_empty_variable_is_no_origin(write_defaults, monkeypatch):
    path = write_defaults("device = 'cpu'")
    monkeypatch.setenv("DETCLI_DEVICE", "")
    assert sources_of("a.jpg")["device"] == str(path)


def test_what_nobody_gave_has_no_origin(write_defaults):
    write_defaults("")
    assert sources_of("a.jpg") == {"source": COMMAND_LINE}


def test_a_value_of_the_file_that_is_false_or_zero_has_its_origin(write_defaults):
    path = write_defaults("recursive = false\nblur-margin = 0.0\nblur = '0'")
    value_sources = sources_of("a.jpg", "--save", "out")
    assert value_sources["recursive"] == str(path)
    assert value_sources["blur_margin"] == str(path)
    assert value_sources["blur"] == str(path)


@pytest.mark.parametrize(
    ("text", "variable", "typed", "origin"),
    [
        ("device = 'banana'", "", [], "--device is from FILE"),
        ("device = 'cpu'", "banana", [], "--device is from DETCLI_DEVICE"),
        ("device = 'banana'", "banana", [], "--device is from DETCLI_DEVICE"),
        ("device = 'banana'", "banana", ["--device", "banana"], None),
        ("conf = 2", "banana", ["--device", "cpu"], "--conf is from FILE"),
        ("conf = 2", "", ["--conf", "3"], None),
    ],
)
def test_an_error_names_the_origin_that_won_and_no_other(
    text, variable, typed, origin, write_defaults, monkeypatch
):
    path = write_defaults(text)
    monkeypatch.setenv("DETCLI_DEVICE", variable)
    result = CliRunner().invoke(app, ["predict", "a.jpg", "-m", "codes"] + list(typed))
    assert result.exit_code == 2
    if origin is None:
        assert "is from" not in result.stderr
    else:
        assert origin.replace("FILE", str(path)) in result.stderr
        assert result.stderr.count("is from") == 1
