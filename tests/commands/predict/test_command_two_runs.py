"""Two runs at the same time that write to one place: nothing is lost without a word."""

import itertools
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import cv2
import forked
import numpy as np
import optional
import pytest
from colour_model import image
from json_lines import column_of, lines

pytestmark = pytest.mark.slow

MODEL = ("-m", "colours.onnx", "--device", "cpu", "-q", "--conf", "0.9")
IMAGES = 12


@pytest.fixture
def two_folders(make_model, tmp_path):
    """Images of the same names in two folders, with a cell of the folder's colour in each."""
    make_model()
    for colour, column in (("red", 1), ("blue", 6)):
        (tmp_path / colour).mkdir()
        for number in range(IMAGES):
            pixels = image((colour, column, number % 8), grey=number)
            cv2.imwrite(str(tmp_path / f"{colour}/{number:02}.png"), pixels)
    return tmp_path


class Run:
    """A run in a process of its own.

    Args:
        arguments: Words of its command line, and lists of them.
        waits: Whether its standard input stays open until `finish`; else it is empty.
    """

    def __init__(self, folder, *arguments, waits=False):
        self._streams = tempfile.TemporaryDirectory()
        self._stderr = Path(self._streams.name, "stderr")
        self._input = None
        stdin = Path(os.devnull)
        if waits:
            stdin = Path(self._streams.name, "stdin")
            os.mkfifo(stdin)
        self._process = forked.start(
            ["predict", arguments, MODEL], stdin=stdin, stderr=self._stderr, cwd=folder
        )
        if waits:
            self._input = os.open(stdin, os.O_WRONLY)

    def has_ended(self):
        return self._process.exitcode is not None

    def close_input(self):
        """Let a run that waits go on."""
        if self._input is not None:
            os.close(self._input)
            self._input = None

    def finish(self):
        """Let the run end; returns its exit code and message."""
        self.close_input()
        self._process.join(120)
        assert self.has_ended()
        message = self._stderr.read_text()
        self._streams.cleanup()
        return self._process.exitcode, message


def both(folder, *arguments):
    """Run both folders at once; returns exit codes and messages."""
    return finish_both([Run(folder, "red", arguments), Run(folder, "blue", arguments)])


def finish_both(runs):
    """Let two runs end at once; returns exit codes and messages."""
    for run in runs:
        run.close_input()
    codes = []
    messages = []
    for run in runs:
        code, message = run.finish()
        codes.append(code)
        messages.append(message)
    return codes, messages


def sources_in(path):
    """Sources of the rows of a file."""
    if path.suffix == ".csv":
        rows = path.read_text().splitlines()[1:]
        return {row.split(",")[0].removeprefix("'") for row in rows}  # no formula for a spreadsheet
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return set(parquet.read_table(path)["source"].to_pylist())
    if path.suffix == ".json":
        return set(column_of(json.loads(path.read_text()), "source"))
    return set(column_of(lines(path.read_text()), "source"))


ALL = {
    f"{colour}/{number:02}.png"
    for colour, number in itertools.product(["red", "blue"], range(IMAGES))
}


# One --output


@pytest.mark.parametrize(
    "suffix", [".jsonl", ".csv", ".json", pytest.param(".parquet", marks=optional.needs("pyarrow"))]
)
def test_rows_of_the_run_that_ends_later_are_beside_the_file(two_folders, suffix):
    name = f"all{suffix}"
    runs = []
    for colour in ("red", "blue"):
        runs.append(Run(two_folders, colour, "-", "-o", name, waits=True))
    wait_for_outputs(two_folders, runs)
    codes, messages = finish_both(runs)
    assert sorted(codes) == [1, 3]  # nothing was on standard input
    message = messages[codes.index(1)]
    assert f"all{suffix} was written by somebody else while this run went on" in message
    assert f"is in all-2{suffix}" in message
    first = sources_in(two_folders / name) - {"-"}
    second = sources_in(two_folders / f"all-2{suffix}") - {"-"}
    assert len(first) == len(second) == IMAGES
    assert first | second == ALL


def wait_for_outputs(folder, runs):
    """Wait until runs have opened a file each."""
    while len(list(folder.glob(".detcli-*.part"))) < len(runs):
        for run in runs:
            assert not run.has_ended()
        time.sleep(0.01)


def waiting_run(folder, *arguments):
    """A run that has opened its outputs, and waits for standard input."""
    run = Run(folder, "-", arguments, waits=True)
    wait_for_outputs(folder, [run])
    return run


@pytest.mark.parametrize("is_there", [True, False])
def test_the_run_that_began_first_may_end_last(two_folders, predict, is_there):
    path = two_folders / "all.jsonl"
    if is_there:
        path.write_text("of a run last week\n")
    run = waiting_run(two_folders, "-o", "all.jsonl", "--save-coco", "coco.json")
    predict("red -o all.jsonl --save-coco coco.json -q")
    written = path.read_bytes()
    code, message = run.finish()
    assert code == 1
    assert "was written by somebody else" in message
    assert path.read_bytes() == written
    assert (two_folders / "all-2.jsonl").exists()
    assert (two_folders / "coco-2.json").read_text().strip() == "[]"
    assert len(json.loads((two_folders / "coco.json").read_text())) > 0


def test_a_file_that_is_gone_is_written_all_the_same(two_folders):
    path = two_folders / "all.jsonl"
    path.write_text("of a run last week\n")
    run = waiting_run(two_folders, "-o", "all.jsonl")
    path.unlink()
    code, _ = run.finish()
    assert code == 3  # nothing was on standard input
    assert path.exists()
    assert not (two_folders / "all-2.jsonl").exists()


def test_runs_one_after_the_other_replace_the_file(two_folders, predict):
    for name in ("red", "blue"):
        predict(f"{name} -o all.jsonl -q")
    sources = sources_in(two_folders / "all.jsonl")
    assert len(sources) == IMAGES
    for source in sources:
        assert source.startswith("blue/")
    assert not (two_folders / "all-2.jsonl").exists()


def test_a_journal_takes_one_run_at_a_time(two_folders):
    codes, messages = both(two_folders, "--resume", "all.jsonl")
    assert sorted(codes) in ([0, 0], [0, 2])  # one may have ended before the other began
    if 2 in codes:
        assert "another run is writing to it" in messages[codes.index(2)]
    assert len(sources_in(two_folders / "all.jsonl")) == IMAGES * codes.count(0)


# One folder of images, crops or labels


def at_work(folder, *arguments):
    """A run over the red images that has written their files, and waits for standard input."""
    run = Run(folder, "red", "-", arguments, "-o", os.devnull, waits=True)
    while len(written(folder / "out")) < IMAGES:
        assert not run.has_ended()
        time.sleep(0.01)
    return run


def written(folder):
    """The files that runs have written to a folder."""
    return [path for path in folder.rglob("[!.]*") if path.is_file()]


@pytest.mark.parametrize("option", ["--save", "--save-txt", "--save-crops"])
def test_runs_at_work_share_the_names_of_a_folder(two_folders, predict, option):
    run = at_work(two_folders, option, "out")
    predict(f"blue {option} out -q --conf 0.9")
    run.finish()
    assert len(written(two_folders / "out")) == 2 * IMAGES
    predict(f"blue {option} out -q --conf 0.9")  # nobody is at work: it has its usual names
    prefixes = {path.name[:2] for path in written(two_folders / "out")}
    for number in range(IMAGES):
        assert f"{number:02}" in prefixes


def test_two_runs_over_the_same_images_write_the_same_files(two_folders, predict):
    run = at_work(two_folders, "--save", "out")
    predict("red --save out -q --conf 0.9")
    run.finish()
    assert len(written(two_folders / "out")) == IMAGES


@pytest.mark.parametrize("option", ["--save", "--save-txt", "--save-crops"])
def test_runs_started_together_lose_no_file(two_folders, option):
    codes, messages = both(two_folders, "-", option, "out", "-o", os.devnull)
    assert codes == [3, 3], messages  # nothing is on standard input
    assert len(written(two_folders / "out")) in {IMAGES, 2 * IMAGES}


# One --save-dataset


def is_labelled(folder, path):
    """Whether the label of an image in a dataset is of its only cell."""
    image = cv2.imread(str(path)).astype(int)
    class_id = 0 if image[..., 2].max() > 200 else 2
    rows, columns = np.nonzero(image[..., 2 - class_id] > 200)
    centre_x = (columns.min() + columns.max() + 1) / 2 / 64
    centre_y = (rows.min() + rows.max() + 1) / 2 / 64
    (label,) = np.loadtxt(folder / f"labels/{path.stem}.txt", ndmin=2)
    return label[0] == class_id and np.allclose(label[1:3], (centre_x, centre_y), atol=1e-3)


def require_whole(folder):
    """Require that a dataset has all images of both folders, each with its label."""
    images = sorted((folder / "images").glob("[!.]*"))
    assert len(images) == len({path.read_bytes() for path in images}) == 2 * IMAGES
    assert len(list((folder / "labels").glob("[!.]*"))) == 2 * IMAGES
    for path in images:
        assert is_labelled(folder, path), path


@pytest.mark.parametrize("turn", range(3))
def test_two_runs_make_one_dataset(two_folders, turn):
    codes, messages = both(two_folders, "-o", os.devnull, "--save-dataset", "set")
    assert codes == [0, 0], (turn, messages)
    require_whole(two_folders / "set")


def test_names_are_not_chosen_while_another_run_writes(two_folders, predict, monkeypatch):
    """Each image of this run waits for the moment at which the other one would take its name."""
    from detcli.sink import dataset

    other_run = threading.Event()
    write_file = dataset.write_file

    def write_late(path: Path, data: bytes) -> None:
        if path.suffix == ".txt" and not other_run.is_set():
            other_run.set()
            runs.append(Run(two_folders, "blue", "-o", os.devnull, "--save-dataset", "set"))
            time.sleep(1.5)  # in which it reaches the same image, and has to wait
        write_file(path, data)

    runs: list[Run] = []
    monkeypatch.setattr(dataset, "write_file", write_late)
    predict("red -q --conf 0.9 --save-dataset set")
    code, message = runs[0].finish()
    assert code == 0, message
    require_whole(two_folders / "set")


def test_a_description_that_another_run_has_written_is_compared(two_folders, predict, monkeypatch):
    """Both runs find a folder without one; the second has other classes."""
    from detcli.sink import dataset

    (two_folders / "names.txt").write_text("one\ntwo\nthree\n")
    begin = dataset.DatasetSink.__init__

    def begin_late(sink, *arguments):
        begin(sink, *arguments)
        monkeypatch.undo()
        monkeypatch.chdir(two_folders)
        monkeypatch.setenv("DETCLI_DEVICE", "cpu")
        run = Run(two_folders, "red", "-o", os.devnull, "--save-dataset", "set")
        code, message = run.finish()
        assert code == 0, message

    monkeypatch.setattr(dataset.DatasetSink, "__init__", begin_late)
    says = "data.yaml does not list the classes of this model"
    predict("blue -q --names names.txt --save-dataset set", code=2, says=says)
    assert "red" in (two_folders / "set/data.yaml").read_text()
