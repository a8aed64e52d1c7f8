"""Options that are typed twice: lists add up, one value is refused, flags are harmless."""

from collections.abc import Iterator

import pytest
from cli.test_command import config_of, write_defaults  # noqa: F401 - a fixture
from typer.testing import CliRunner

from detcli.cli.app import COMMANDS, _load, app
from detcli.config.option import Option
from detcli.core.errors import UsageError


@pytest.fixture(autouse=True)
def _no_device_variable(monkeypatch):
    monkeypatch.delenv("DETCLI_DEVICE")


def options_of_all_commands() -> Iterator[tuple[list[str], Option]]:
    """The words of each command, and each of its options that has a value."""
    for name in COMMANDS:
        loaded = _load(name)
        commands = [([name], loaded)]
        if hasattr(loaded, "commands"):
            commands = []
            for part, subcommand in loaded.commands.items():
                commands.append(([name, part], subcommand))
        for words, command in commands:
            for option in command.options.values():
                if option.names and option.metavar:
                    yield words, option


LISTS = {
    "predict": "--conf --classes --blur --device --labels --preprocess --zone --line --ignore "
    "--fail-if",
    "report": "--blur",
    "count": "--conf --classes --by",
    "sort": "--by",
    "promise": "--classes --lost",
    "inspect": "--preprocess",
    "convert": "--preprocess --calibrate --metadata --tolerance",
    "verify": "--preprocess --device --images --tolerance",
    "eval": "--preprocess --device",
    "bench": "--preprocess --device",
    "tune": "--preprocess --device --tolerance",
}
"""The lists of each command."""

SINGLE = [
    (words, option)
    for words, option in options_of_all_commands()
    if option.flag not in LISTS.get(words[0], "").split()
]


def test_there_are_many_options_with_one_value():
    assert len(SINGLE) > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "option"),
    SINGLE,
    ids=[" ".join(words + [option.flag]) for words, option in SINGLE],
)
def test_one_value_is_refused_when_it_is_typed_twice(words, option):
    for flag in option.names:
        for second in ("b", "a"):
            done = CliRunner().invoke(app, words + [flag, "a", option.flag, second])
            assert done.exit_code == 2
            assert f"{option.flag} is given twice: a and {second}" in done.stderr
            assert "hint: give one of them" in done.stderr


def test_all_values_are_named():
    with pytest.raises(UsageError, match="--imgsz is given 3 times: 64, 640 and 64"):
        config_of("a.jpg", "--imgsz", 64, "--imgsz", 640, "--imgsz=64")


def test_an_alias_is_no_place_for_a_default():
    alias = ["a.jpg", "-m", "mine.onnx"]
    with pytest.raises(UsageError, match="--model is given twice") as caught:
        config_of(alias, "--model", "other.onnx")
    assert "DETCLI_MODEL and detcli.toml" in caught.value.hint


@pytest.mark.parametrize(
    ("typed", "name", "expected"),
    [
        ("--classes person --classes car,dog", "classes", ["person", "car", "dog"]),
        ("--classes person, --classes ,0", "classes", ["person", "0"]),
        ("--save out --blur dog --blur car", "blur", ["dog", "car"]),
        ("--device cpu --device openvino", "device", ["cpu", "openvino:CPU"]),
        ("--fail-if any>3 --fail-if car>0", "fail_if", ["any>3", "car>0"]),
        ("--conf 0.3 --conf car=0.5", "conf", 0.3),
        ("--conf 0.3 --conf car=0.5", "class_conf", [["car", 0.5]]),
        ("--conf dog=0.4 --conf car=0.5", "class_conf", [["dog", 0.4], ["car", 0.5]]),
        ("--save out --labels score --labels name", "labels", "name,score"),
        ("--preprocess stretch --preprocess bgr", "preprocess", "stretch,bgr"),
        ("a.jpg b.jpg", "source", ["x.jpg", "a.jpg", "b.jpg"]),
    ],
)
def test_a_list_adds_up(typed, name, expected):
    assert config_of("x.jpg", typed.split())[name] == expected


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--conf 0.3 --conf 0.5", "'0.3,0.5' has two numbers without a name"),
        ("--conf car=0.3 --conf car=0.5", "'car=0.3,car=0.5' has two numbers for car"),
        ("--save out --labels none --labels name", "'none,name' has a part other than"),
        ("--classes= --classes car", "--classes: '' is an empty list"),
        ("--classes car --classes ,", "--classes: ',' is an empty list"),
        ("--zone a=0,0,1,0,1,1 --zone a=0,0,1,0,0,1", "line a is given twice"),
    ],
)
def test_what_contradicts_itself_in_a_list_is_refused(typed, message):
    with pytest.raises(UsageError, match=message):
        config_of("x.jpg", typed.split())


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--rect --rect", True),
        ("--rect --no-rect", False),
        ("--no-rect --rect", True),
        ("--rect --no-rect --rect", True),
    ],
)
def test_of_a_flag_the_last_counts(typed, expected):
    assert config_of("x.jpg", typed.split())["rect"] is expected


def test_verbose_counts():
    assert config_of("x.jpg", "-v", "-v")["verbose"] == 2


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ('classes = ["person", "car,dog"]', "classes", ["person", "car", "dog"]),
        ("classes = [0, 2]", "classes", ["0", "2"]),
        ("classes = 2", "classes", ["2"]),
        ("classes = []", "classes", []),
        ('device = ["cpu", "openvino"]', "device", ["cpu", "openvino:CPU"]),
        ('conf = [0.3, "car=0.5"]', "conf", 0.3),
        ('conf = [0.3, "car=0.5"]', "class_conf", [["car", 0.5]]),
        ('preprocess = ["stretch", "bgr"]', "preprocess", "stretch,bgr"),
        ('fail-if = ["any>3", "car>0"]', "fail_if", ["any>3", "car>0"]),
    ],
)
def test_a_list_in_the_file_adds_up(text, name, expected, write_defaults):  # noqa: F811
    write_defaults(text)
    assert config_of("x.jpg")[name] == expected


def test_a_list_in_the_file_hides_all_of_it(write_defaults):  # noqa: F811
    write_defaults('blur = ["dog", "car"]')
    assert config_of("x.jpg", "--save", "out")["blur"] == ["dog", "car"]


def test_the_command_line_replaces_the_list_of_the_file(write_defaults):  # noqa: F811
    write_defaults('classes = ["person", "car"]')
    assert config_of("x.jpg", "--classes", "dog", "--classes", "cat")["classes"] == ["dog", "cat"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("classes = [true]", r"classes must be a list of texts or numbers, not \[True\]"),
        ('classes = [["car"]]', "classes must be a list of texts or numbers"),
        ('classes = ["car", ""]', "--classes: '' is an empty list"),
        ("conf = [0.3, 0.5]", "'0.3,0.5' has two numbers without a name"),
        ("imgsz = [640, 640]", "imgsz must be a whole number"),
        ('model = ["a.onnx", "b.onnx"]', "model must be a text"),
        ("device = 0", "unknown device '0'"),
        ("conf = 0.3\nconf = 0.5", "Cannot overwrite a value"),
    ],
)
def test_what_cannot_add_up_in_the_file_is_refused(text, message, write_defaults):  # noqa: F811
    write_defaults(text)
    with pytest.raises(UsageError, match=message):
        config_of("x.jpg")


def test_a_variable_holds_a_list(monkeypatch):
    monkeypatch.setenv("DETCLI_DEVICE", "cpu,openvino")
    assert config_of("x.jpg")["device"] == ["cpu", "openvino:CPU"]
    assert config_of("x.jpg", "--device", "cpu")["device"] == ["cpu"]
