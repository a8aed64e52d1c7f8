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

import forked
import pytest
import stream_server
import terminals
from json_lines import column_of, lines, records_with

pytestmark = pytest.mark.slow


@pytest.fixture
def stream_source():
    with stream_server.serve() as server:
        yield server


@pytest.fixture
def on_terminal(warm_detcli):
    """What stderr shows on a terminal, and the exit code; stdout is the same one if None."""

    def run(*arguments, columns=80, stdout=subprocess.DEVNULL, **environment):
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        inherited = os.environ.copy()
        for name in ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
            inherited.pop(name, None)
        with subprocess.Popen(
            [warm_detcli / "detcli", "predict"] + forked.words_of(arguments),
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            env=inherited | {"TERM": "xterm"} | environment,
        ) as process:
            os.close(theirs)
            screen = terminals.read_all(ours)
            code = process.wait(60)
        os.close(ours)
        return screen.decode(), code

    return run


@pytest.fixture
def folder_of_images(make_image, tmp_path):
    """Six images, of which one is torn."""
    for number in range(6):
        image = make_image(f"pics/{number}.png", ("red", 1, 1), ("blue", 3, 3))
    image.write_bytes(b"torn")
    return tmp_path / "pics"


@pytest.mark.usefixtures("folder_of_images")
def test_the_outcome_names_classes_and_files(predict):
    command = "pics --conf 0.6 -o out.jsonl"
    messages = predict(f"{command} --save saved --save-txt txt", code=3).stderr.splitlines()
    summary, counts, wrote, saved, labels = messages[-5:]
    assert "5 images, 10 detections, 1 failed" in summary
    assert counts in {"detcli: found 5 red, 5 blue", "detcli: found 5 blue, 5 red"}
    assert wrote == "detcli: wrote 6 records to out.jsonl"
    assert saved == "detcli: wrote 5 files to saved"
    assert labels == "detcli: wrote 5 files to txt"
    messages_again = predict(command, code=3).stderr.splitlines()
    assert messages_again[-1] == f"{wrote}, in place of the file that was there"
    assert "found" not in predict(f"{command} -q", code=3).stderr
    predict("pics --conf 0.6 -o out.csv", code=3, says="wrote 11 rows of 6 records to out.csv\n")
    assert "wrote" not in predict(f"pics -o {os.devnull}", code=3).stderr


@pytest.mark.usefixtures("folder_of_images")
def test_a_resumed_run_says_how_many_it_skipped(predict):
    says = "detcli: added 6 records to run.jsonl\n"
    predict("pics --resume run.jsonl", code=3, says=says)
    messages = predict("pics --resume run.jsonl", code=3).stderr.splitlines()
    summary, wrote = messages[-2:]
    assert "0 images, 0 detections, 1 failed, 5 skipped" in summary
    assert wrote == "detcli: added 1 record to run.jsonl; it had 5 inputs already"


@pytest.mark.parametrize("options", ["-o out.jsonl", "--resume run.jsonl", "-o out.jsonl -q", ""])
def test_a_bar_is_shown_unless_records_are(
    on_terminal, options, make_model, folder_of_images, tmp_path
):
    """Records go to a file, or to the same terminal as table."""
    words = []
    for word in options.split():
        if "." in word:
            words.append(str(tmp_path / word))
        else:
            words.append(word)
    screen, code = on_terminal(folder_of_images, "-m", make_model(), words, stdout=None)
    assert code == 3
    quiet = "-q" in words
    assert ("/6  " in screen) == (bool(words) and not quiet)
    assert ("0.png  64x64" in screen) == (not words)
    assert ("detcli: found" in screen) == (not quiet)


def test_records_in_a_pipe_come_without_a_bar(on_terminal, make_model, folder_of_images, tmp_path):
    """What reads the pipe prints to the terminal, as `| jq` does."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:  # noqa: S607
        screen, _ = on_terminal(folder_of_images, "-m", make_model(), stdout=reader.stdin)
    assert "/6  " not in screen
    assert "detcli: found" in screen
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.DEVNULL):  # noqa: S607
        assert (
            "/6  "
            not in on_terminal(folder_of_images, "-m", make_model(), "-o", tmp_path / "pipe")[0]
        )


def test_a_bar_fits_a_narrow_terminal(on_terminal, make_model, folder_of_images):
    screen, _ = on_terminal(folder_of_images, "-m", make_model(), columns=40, NO_COLOR="1")
    bar = re.compile(r"\d/6  \d+ detections[^\r\n\x1b]*")
    assert bar.search(screen)
    assert max(map(len, bar.findall(screen))) <= 40


def test_a_bar_without_an_end(on_terminal, stream_source, make_model):
    screen, code = on_terminal(stream_source.url(), "-m", make_model(), "--end", 0.5)
    assert code == 0
    assert "/?  " in screen
    assert "00:00 " not in screen  # as if it were over


def test_the_outcome_lists_streams(predict, stream_source, tmp_path):
    """Streams are read at once, and each has frames, a rate and a video of its own."""
    names = [
        stream_source.url("/stream0"),
        stream_source.url("/stream1"),
        stream_source.url("/stream2"),
    ]
    completed = predict(
        "--end 1 -o out.jsonl --save saved", names, stream_source.url("/gone"), code=3
    )
    records = lines((tmp_path / "out.jsonl").read_text())
    assert column_of(records, "index") == list(range(len(records)))
    frames = Counter(column_of(records_with(records, "frame"), "source"))
    assert set(frames) == set(names)
    messages = completed.stderr.replace("detcli: ", "").splitlines()
    assert f"{stream_source.url('/gone')}: 0 frames" in messages
    for name in names:
        pattern = rf"{name}: {frames[name]} frames?(, [0-9.]+/s)?(, \d+ dropped)?"
        matches = [line for line in messages if re.fullmatch(pattern, line)]
        assert len(matches) == 1
    assert f"{frames.total()} frames, " in completed.stderr
    assert len(list((tmp_path / "saved").glob("*.mp4"))) == 3
    assert (
        stream_source.url() not in predict("--end 0.2", stream_source.url()).stderr
    )  # one is not listed


def test_a_run_with_streams_is_resumed(predict, stream_source, tmp_path):
    """Files that are done are skipped, frames of streams never."""
    names = [stream_source.url("/stream1"), "a.png", stream_source.url("/stream2")]
    for _ in range(2):
        completed = predict("--end 0.2 --resume run.jsonl", names)
    counts = Counter(column_of(lines((tmp_path / "run.jsonl").read_text()), "source"))
    assert counts.keys() == set(names)
    assert counts["a.png"] == 1
    assert "1 skipped" in completed.stderr


def test_a_terminal_that_cannot_draw_gets_lines(on_terminal, make_model, folder_of_images):
    screen, _ = on_terminal(folder_of_images, "-m", make_model(), TERM="dumb")
    assert "\x1b" not in screen
    assert "━" not in screen
    assert "detcli: 5 images" in screen


def test_an_interrupted_run_says_how_far_it_came(warm_detcli, make_model, long_video, tmp_path):
    output = tmp_path / "out.csv"
    command = [warm_detcli / "detcli", "predict", str(long_video), "-m"]
    command += [str(make_model(size=None, batch=None)), "--conf", "0.6"]
    for options, hint in (
        (
            ["-o", str(output), "--save-coco", str(tmp_path / "coco.json")],
            "this run cannot be continued; one without --save-coco that can:",
        ),
        (["--resume", str(tmp_path / "run.jsonl")], "the same command goes on from here"),
    ):
        with subprocess.Popen(
            command + options + ["--save-txt", str(tmp_path / "labels")],
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while len(list(tmp_path.glob("labels/*"))) < 3 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            messages = process.stderr.read().splitlines()
            how_far, how_on = [line for line in messages if not line.startswith("    ")][-2:]
            assert process.wait(60) == 130
        for label in tmp_path.glob("labels/*"):
            label.unlink()
        assert re.fullmatch(r"detcli: interrupted after \d+ of 2000 inputs", how_far)
        assert how_on.startswith(f"  hint: {hint}")
    assert output.read_text().startswith("source,")


def frames_were_dropped(output):
    """Whether the numbers of the frames, behind the two lines that were there, have a gap."""
    complete_lines = output.read_text().split("\n")[:-1]
    frames = [json.loads(line)["frame"] for line in complete_lines[2:]]
    return len(frames) > 1 and frames[-1] - frames[0] >= len(frames)


def test_records_of_a_stream_are_added_at_once(warm_detcli, stream_source, make_model, tmp_path):
    """Each line is complete when it is there, and Ctrl-C ends the run with a summary."""
    stream_source.pause = 0.001  # frames are dropped
    output = tmp_path / "out.jsonl"
    output.write_text('{"from": "before"}\n{"torn')
    command = [warm_detcli / "detcli", "predict", stream_source.url(), "-m", str(make_model())]
    with subprocess.Popen(
        command + ["-o", str(output)], stderr=subprocess.PIPE, text=True
    ) as process:
        while not frames_were_dropped(output):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        assert process.wait(60) == 130
    lines_in_file = output.read_text().splitlines()
    assert lines_in_file[0] == '{"from": "before"}'
    assert lines_in_file[1] == '{"torn'
    added_lines = lines_in_file[2:]
    for line in added_lines:
        assert json.loads(line)["source"] == stream_source.url()
    assert re.search(rf"detcli: {len(added_lines)} frames.*\d+ frames? dropped", errors)
    assert f"detcli: added {len(added_lines)} records to {output}" in errors
    assert "hint" not in errors


def test_formats_of_a_stream(stream_source, predict, tmp_path):
    """CSV has one header, however many runs add to it; an array is whole when the run has ended."""
    common = f"{stream_source.url()} --end 0.3 -o"
    for name in ("out.csv", "out.csv", "out.json"):
        predict(f"{common} {name}")
    output = tmp_path / "out.csv"
    rows = list(csv.reader(output.read_text().splitlines()))
    first_column = [row[0] for row in rows]
    assert first_column.count("source") == 1
    assert len(rows) > 2
    assert len(json.loads((tmp_path / "out.json").read_text())) > 0
    output.write_text("name,box\n")
    predict(f"{common} out.csv", code=2, says="differ from those of this run")
    assert output.read_text() == "name,box\n"


def test_records_of_files_still_replace(predict, tmp_path):
    for _ in range(2):
        predict("a.png -o out.jsonl")
    assert len(lines((tmp_path / "out.jsonl").read_text())) == 1
