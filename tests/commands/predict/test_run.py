"""What a run tells its user: progress, the outcome, how to go on."""

import csv
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios
import time
from collections import Counter

import pytest
import stream_server
import terminals
from json_lines import lines


@pytest.fixture
def server():
    with stream_server.serve() as server:
        yield server


@pytest.fixture
def on_terminal(warm_detcli):
    """What stderr shows on a terminal, and the exit code; stdout is the same one if None."""

    def run(*arguments, columns=80, stdout=subprocess.DEVNULL, **environment):
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        names = {"NO_COLOR", "COLUMNS", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"}
        inherited = {name: value for name, value in os.environ.items() if name not in names}
        with subprocess.Popen(
            [warm_detcli / "detcli", "predict", *map(str, arguments)],
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            env={**inherited, "TERM": "xterm"} | environment,
        ) as process:
            os.close(theirs)
            shown = terminals.read_all(ours)
            code = process.wait(60)
        os.close(ours)
        return shown.decode(), code

    return run


@pytest.fixture
def folder(make_picture, tmp_path):
    """Six pictures, of which one is torn."""
    for number in range(6):
        picture = make_picture(f"pics/{number}.png", ("red", 1, 1), ("blue", 3, 3))
    picture.write_bytes(b"torn")
    return tmp_path / "pics"


def test_the_outcome_names_classes_and_files(invoke, make_model, folder, tmp_path):
    output = tmp_path / "out.jsonl"
    arguments = ["predict", folder, "-m", make_model(), "--conf", 0.6, "-o", output]
    finished = invoke(*arguments, "--save", tmp_path / "saved", "--save-txt", tmp_path / "txt")
    *_, summary, found, wrote, saved, labels = finished.stderr.splitlines()
    assert "5 pictures, 10 detections, 1 failed" in summary
    assert found in {"detcli: found 5 red, 5 blue", "detcli: found 5 blue, 5 red"}
    assert wrote == f"detcli: wrote 6 records to {output}"
    assert saved == f"detcli: wrote 5 files to {tmp_path / 'saved'}"
    assert labels == f"detcli: wrote 5 files to {tmp_path / 'txt'}"
    again = invoke(*arguments).stderr.splitlines()
    assert again[-1] == f"{wrote}, in place of the file that was there"
    assert "found" not in invoke(*arguments, "-q").stderr


def test_a_special_file_is_not_said_to_be_written(invoke, make_model, folder):
    finished = invoke("predict", folder, "-m", make_model(), "-o", os.devnull)
    assert "wrote" not in finished.stderr


def test_a_resumed_run_says_how_many_it_skipped(invoke, make_model, folder, tmp_path):
    journal = tmp_path / "run.jsonl"
    arguments = ["predict", folder, "-m", make_model(), "--resume", journal]
    assert invoke(*arguments).stderr.splitlines()[-1] == f"detcli: added 6 records to {journal}"
    *_, summary, wrote = invoke(*arguments).stderr.splitlines()
    assert "0 pictures, 0 detections, 1 failed, 5 skipped" in summary
    assert wrote == f"detcli: added 1 record to {journal}; it had 5 inputs already"


@pytest.mark.parametrize("options", [["-o", "out.jsonl"], ["--resume", "run.jsonl"], []])
def test_a_bar_is_shown_unless_records_are(on_terminal, options, make_model, folder, tmp_path):
    """Records go to a file, or to the same terminal as table."""
    options = [str(tmp_path / one) if "." in one else one for one in options]
    shown, code = on_terminal(folder, "-m", make_model(), *options, stdout=None)
    assert code == 3
    assert ("/6  " in shown) == bool(options)
    assert ("0.png  64x64" in shown) == (not options)
    assert "detcli: found" in shown


def test_records_in_a_pipe_come_without_a_bar(on_terminal, make_model, folder, tmp_path):
    """What reads the pipe prints to the terminal, as `| jq` does."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:  # noqa: S607
        shown, _ = on_terminal(folder, "-m", make_model(), stdout=reader.stdin)
    assert "/6  " not in shown
    assert "detcli: found" in shown
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.DEVNULL):  # noqa: S607
        assert "/6  " not in on_terminal(folder, "-m", make_model(), "-o", tmp_path / "pipe")[0]


def test_a_bar_fits_a_narrow_terminal(on_terminal, make_model, folder):
    shown, _ = on_terminal(folder, "-m", make_model(), columns=40, NO_COLOR="1")
    bar = re.compile(r"\d/6  \d+ detections[^\r\n\x1b]*")
    assert bar.search(shown)
    assert max(map(len, bar.findall(shown))) <= 40


def test_a_bar_without_an_end(on_terminal, server, make_model):
    shown, code = on_terminal(server.url(), "-m", make_model(), "--end", 0.5)
    assert code == 0
    assert "/?  " in shown
    assert "00:00 " not in shown  # as if it were over


def test_the_outcome_lists_streams(invoke, server, make_model, tmp_path):
    """Streams are read at once, and each has frames, a rate and a video of its own."""
    names = [server.url(f"/stream{number}") for number in range(3)]
    output, saved = tmp_path / "out.jsonl", tmp_path / "saved"
    arguments = ["-m", make_model(), "--end", 1, "-o", output, "--save", saved]
    finished = invoke("predict", *names, server.url("/gone"), *arguments)
    assert finished.returncode == 3
    records = lines(output.read_text())
    assert [record["index"] for record in records] == list(range(len(records)))
    frames = Counter(record["source"] for record in records if "frame" in record)
    assert set(frames) == set(names)
    said = finished.stderr.replace("detcli: ", "").splitlines()
    assert f"{server.url('/gone')}: 0 frames" in said
    for name in names:
        pattern = rf"{name}: {frames[name]} frames?(, [0-9.]+/s)?(, \d+ dropped)?"
        assert sum(bool(re.fullmatch(pattern, line)) for line in said) == 1
    assert any(f"{frames.total()} frames, " in line for line in said)
    assert len(list(saved.glob("*.mp4"))) == 3


def test_one_stream_is_not_listed(invoke, server, make_model):
    finished = invoke("predict", server.url(), "-m", make_model(), "--end", 0.2)
    assert server.url() not in finished.stderr


def test_a_run_with_streams_is_resumed(invoke, server, make_model, folder, tmp_path):
    """Files that are done are skipped, frames of streams never."""
    journal = tmp_path / "run.jsonl"
    names = [server.url("/stream1"), folder / "0.png", server.url("/stream2")]
    for _ in range(2):
        finished = invoke("predict", *names, "-m", make_model(), "--end", 0.2, "--resume", journal)
        assert finished.returncode == 0
    found = Counter(record["source"] for record in lines(journal.read_text()))
    assert found.keys() == set(map(str, names))
    assert found[str(folder / "0.png")] == 1
    assert "1 skipped" in finished.stderr


def test_a_terminal_that_cannot_draw_gets_lines(on_terminal, make_model, folder):
    shown, _ = on_terminal(folder, "-m", make_model(), TERM="dumb")
    assert "\x1b" not in shown
    assert "━" not in shown
    assert "detcli: 5 pictures" in shown


def test_an_interrupted_run_says_how_far_it_came(warm_detcli, make_model, long_video, tmp_path):
    output = tmp_path / "out.csv"
    command = [warm_detcli / "detcli", "predict", str(long_video), "-m"]
    command += [str(make_model(size=None, batch=None)), "--conf", "0.6"]
    for options, hint in (
        (["-o", str(output)], "with --resume FILE, the same command would"),
        (["--resume", str(tmp_path / "run.jsonl")], "the same command goes on from here"),
    ):
        with subprocess.Popen(
            [*command, *options, "--save-txt", str(tmp_path / "labels")],
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while len(list(tmp_path.glob("labels/*"))) < 3 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            *_, how_far, how_on = process.stderr.read().splitlines()
            assert process.wait(60) == 130
        for label in tmp_path.glob("labels/*"):
            label.unlink()
        assert re.fullmatch(r"detcli: interrupted after \d+ of 2000 inputs", how_far)
        assert how_on.startswith(f"  hint: {hint}")
    assert output.read_text().startswith("source,")


def test_records_of_a_stream_are_added_at_once(warm_detcli, server, make_model, tmp_path):
    """Each line is complete when it is there, and Ctrl-C ends the run with a summary."""
    server.pause = 0.001  # frames are dropped
    output = tmp_path / "out.jsonl"
    output.write_text('{"from": "before"}\n{"torn')
    command = [warm_detcli / "detcli", "predict", server.url(), "-m", str(make_model())]
    with subprocess.Popen(
        [*command, "-o", str(output)], stderr=subprocess.PIPE, text=True
    ) as process:
        while output.read_text().count("\n") < 40:  # by then, frames were dropped
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(60) == 130
    before, torn, *after = output.read_text().splitlines()
    assert (before, torn) == ('{"from": "before"}', '{"torn')
    assert [json.loads(line)["source"] for line in after] == [server.url()] * len(after)
    assert re.search(rf"detcli: {len(after)} frames.*\d+ frames? dropped", said)
    assert f"detcli: added {len(after)} records to {output}" in said
    assert "hint" not in said


def test_formats_of_a_stream(server, invoke, make_model, tmp_path):
    """CSV has one header, however many runs add to it; an array is whole when the run has ended."""
    model, output, array = make_model(), tmp_path / "out.csv", tmp_path / "out.json"
    for path in (output, output, array):
        common = ["predict", server.url(), "-m", model, "--end", 0.3]
        assert invoke(*common, "-o", path).returncode == 0
    rows = list(csv.reader(output.read_text().splitlines()))
    assert [row[0] for row in rows if row[0] == "source"] == ["source"]
    assert len(rows) > 2
    assert len(json.loads(array.read_text())) > 0
    output.write_text("name,box\n")
    refused = invoke("predict", server.url(), "-m", model, "--end", 0.3, "-o", output)
    assert refused.returncode == 2
    assert "differ from those of this run" in refused.stderr
    assert output.read_text() == "name,box\n"


def test_records_of_files_still_replace(invoke, make_model, folder, tmp_path):
    output = tmp_path / "out.jsonl"
    for _ in range(2):
        invoke("predict", folder, "-m", make_model(), "-o", output)
    assert len(lines(output.read_text())) == 6
