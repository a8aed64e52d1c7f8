"""The `detcli` command as a whole: help, version, refused arguments, unexpected errors."""

import shlex

import forked
import pytest
import typer.main
from typer.testing import CliRunner

import detcli as package
from detcli.cli import app as app_module


@pytest.mark.parametrize("name", app_module.COMMANDS)
def test_the_list_of_commands_says_what_their_help_says(name):
    command = typer.main.get_command(app_module.app).get_command(None, name)  # type: ignore[attr-defined]
    assert command.name == name
    assert app_module.COMMANDS[name] == command.get_short_help_str()


def test_public_names_are_complete():
    names = {name for name in package.__all__ if getattr(package, name) is not None}
    assert names == set(package.__all__)
    assert set(package._MODULES) | {"__version__"} == set(package.__all__)  # noqa: SLF001 - must agree
    with pytest.raises(AttributeError, match="nonsense"):
        _ = package.nonsense


def test_version():
    for option in ("--version", "-V"):
        result = CliRunner().invoke(app_module.app, [option])
        assert result.exit_code == 0
        assert result.stdout == f"detcli {package.__version__}\n"


def refused(*arguments):
    """What the command line says on stderr when it refuses its arguments."""
    result = CliRunner().invoke(app_module.app, forked.words_of(arguments), prog_name="detcli")
    assert result.exit_code == 2
    assert result.stdout == ""
    return result.stderr


@pytest.mark.parametrize(
    ("line", "says", "hints"),
    [
        ("predict --fromat csv", "no such option: --fromat", "did you mean --format?"),
        ("predict --stride 2", "no such option: --stride", "did you mean --vid-stride?"),
        ("predict a.mp4 --fps 1",
         "--fps needs frames on standard input, but - is not among the inputs",
         "every tenth frame"),
        ("predict --weights a.onnx", "no such option: --weights", "did you mean --model?"),
        ("eval a.onnx --confidence 0.3", "no such option: --confidence", "did you mean --conf?"),
        ("verify a.onnx --save worst", "no such option: --save", "did you mean --report?"),
        ("inspect a.onnx --try pics", "no such option: --try", "did you mean --preprocess?"),
        ("convert a.onnx --data b", "no such option: --data", "see: detcli eval --help"),
        ("bench --sweep batch=1,2", "no such option: --sweep", "see: detcli tune --help"),
        ("predict --gpu-decode", "no such option: --gpu-decode", "the CPU decodes all images"),
        ("bench --mode topk", "--mode: 'topk' is not one of", "no command measures it any more"),
        ("inspect a.onnx --parts", "no such option: --parts", "did you mean --preprocess?"),
        ("predict --watch", "no such option: --watch", "did you mean --follow?"),
        ("predict --max-det x", "--max-det: 'x' is not a valid int", "see: detcli predict --help"),
        ("bench --batch 0", "--batch: 0 is not in the range 1<=x<=1024",
         "see: detcli bench --help"),
        ("bench --batch 1000000000", "--batch: 1000000000 is not in the range 1<=x<=1024",
         "see: detcli bench --help"),
        ("predict a.jpg --batch 0", "--batch: 0 is not in the range 1<=x<=1024",
         "see: detcli predict --help"),
        ("predict a.jpg --batch 1000000000", "--batch: 1000000000 is not in the range 1<=x<=1024",
         "see: detcli predict --help"),
        ("eval a.onnx --data b --batch 0", "--batch: 0 is not in the range 1<=x<=1024",
         "see: detcli eval --help"),
        ("eval a.onnx --data b --batch 1000000000",
         "--batch: 1000000000 is not in the range 1<=x<=1024", "see: detcli eval --help"),
        ("predict --format xml", "--format: 'xml' is not one of 'table'", "predict --help"),
        ("predict --conf", "option '--conf' requires an argument", "--help"),
        ("eval", "missing argument 'MODEL'", "see: detcli eval --help"),
        ("eval a.onnx", "missing option '--data'", "see: detcli eval --help"),
        ("inspect a b", "unexpected argument 'b': detcli inspect takes MODEL and options",
         "see: detcli inspect --help"),
        ("eval a b c", "unexpected argument 'c': detcli eval takes MODEL [OTHER] and options",
         "see: detcli eval --help"),
        ("doctor a b c d e",
         "unexpected arguments 'a' 'b' 'c' ...: detcli doctor takes options only",
         "see: detcli doctor --help"),
        ("predict -f json", "no such option: -f", "did you mean --format?"),
        ("inspect a.onnx -f json", "no such option: -f", "did you mean --format?"),
        ("predict --format jsno", "--format: 'jsno' is not one of 'table'", "did you mean json?"),
        ("bench --mode latncy", "--mode: 'latncy' is not one of", "did you mean latency?"),
        ("predict --track bytetrak", "--track bytetrak: no tracker 'bytetrak'",
         "did you mean bytetrack? write bytetrack, botsort, ocsort"),
        ("predict a.jpg -o x.jsno", "--output x.jsno: the suffix .jsno names no format",
         "--save-txt writes YOLO labels"),
        ("models pul", "no such command 'pul'. Did you mean 'pull'?", "detcli models --help"),
        ("--wrong", "no such option: --wrong", "see: detcli --help"),
        ("--verison", "no such option: --verison", "did you mean --version?"),
        ("predict -dash.jpg", "no such option: -d",
         "see: detcli predict --help; a file whose name begins with - needs ./ in front"),
    ],
)  # fmt: skip
def test_refused_arguments_read_like_other_errors(line, says, hints):
    first, second = refused(line.split()).splitlines()
    assert first.startswith(f"detcli: error: {says}")
    assert second.startswith("  hint: ")
    assert second.endswith(hints)


SOURCES = [
    "street.jpg", "street.jpg --save out", "--save out street.jpg", "'a b.jpg'", "'*.jpg'",
    "camera:0", "rtsp://10.0.0.7/cam", "-", "pics",
]  # fmt: skip
SUGGESTIONS = [
    (" ".join(f"{number}.jpg" for number in range(3000)),
     "detcli predict 0.jpg 1.jpg 2.jpg 3.jpg ..."),
    ("benhc", "did you mean detcli bench?"),
    ("PREDICT", "did you mean detcli predict?"),
    ("detect street.jpg", "did you mean detcli predict?"),
    ("val", "did you mean detcli eval?"),
    ("nonsense", "see: detcli --help"),
    ("n" * 5000, "see: detcli --help"),
    ("'a\nb.jpg'", "detcli predict 'a\\nb.jpg'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "command"), [(line, f"detcli predict {line}") for line in SOURCES] + SUGGESTIONS
)
def test_a_missing_command_is_suggested(line, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pics").mkdir()
    assert refused(shlex.split(line)).endswith(f"{command}\n")


@pytest.mark.parametrize("line", ["", "--save out", "doctor", "bench --batch"])
def test_refusals_hide_passwords(line):
    assert "secret" not in refused(line.split(), "rtsp://admin:secret@10.0.0.7/cam")


def test_no_command_shows_the_help_and_that_completion_is_offered(detcli):
    finished = detcli()
    assert "Commands:" in finished.stdout + finished.stderr
    assert "--install-completion" in finished.stdout + finished.stderr
    assert finished.returncode == 2
    assert "--install-completion" in detcli("--help").stdout


def test_a_bug_is_reported_without_a_traceback(monkeypatch):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("detcli.run.find", broken)
    result = CliRunner().invoke(app_module.app, ["predict", "x.jpg", "-m", "y.onnx"])
    assert result.exit_code == 1
    assert "a bug in detcli: ZeroDivisionError: oops" in result.stderr
    assert "Traceback" not in result.stderr
