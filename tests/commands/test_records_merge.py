"""`detcli merge`: what becomes of whole, missing and damaged parts."""

import json

import cv2
import pytest
from colour_model import picture

FORMATS = ["table", "jsonl", "json", "csv", "parquet"]


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """A folder with a run in shards, of pictures, a video, a failure and an odd name."""
    import forked
    from colour_model import NAMES, build

    folder = tmp_path_factory.mktemp("run")
    names = str(dict(enumerate(NAMES)))
    model = folder / "colours.onnx"
    model.write_bytes(build("body", metadata={"names": names}).SerializeToString())
    pictures = folder / "pics"
    pictures.mkdir()
    for number in range(9):
        squares = [("red", number % 8, 1)] if number % 2 else []
        cv2.imwrite(str(pictures / f"{number}.png"), picture(*squares))
    (pictures / "5 torn.png").write_bytes((pictures / "5.png").read_bytes()[:100])
    (pictures / "ä=1.png").write_bytes((pictures / "3.png").read_bytes())
    video = cv2.VideoWriter(str(pictures / "4.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 64))
    for _ in range(7):
        video.write(picture(("blue", 2, 2)))
    video.release()
    command = ["predict", pictures, folder / "absent.png", "-m", model, "-q", "--conf", "0.5"]
    for name in FORMATS:
        done = forked.run([*command, "--format", name, "-o", folder / f"one.{name}"])
        assert done.returncode == 3, done.stderr
    for name in ("jsonl", "parquet"):
        boxes = f"{folder / name}/"
        done = forked.run([*command, "-o", boxes, "--shard-size", 2, "--format", name])
        assert done.returncode == 3, done.stderr
    return folder


@pytest.fixture
def boxes(worked, tmp_path):
    """A copy of its parts, which the test may damage."""
    import shutil

    return shutil.copytree(worked / "jsonl", tmp_path / "boxes")


@pytest.mark.parametrize("parts", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", FORMATS)
def test_merged_parts_are_what_one_run_writes(worked, invoke, tmp_path, parts, name):
    output = tmp_path / f"all.{name}"
    done = invoke("merge", worked / parts, "--format", name, "-o", output)
    assert (done.returncode, done.stdout) == (0, "")
    assert "wrote 19 records of 7 parts" in done.stderr
    if name == "parquet":  # whose row groups may be cut elsewhere
        from pyarrow import parquet

        assert parquet.read_table(output).equals(parquet.read_table(worked / "one.parquet"))
    else:
        assert output.read_bytes() == (worked / f"one.{name}").read_bytes()


def test_records_go_to_standard_output(worked, invoke):
    done = invoke("merge", f"{worked / 'jsonl'}/")
    assert done.returncode == 0
    assert done.stdout == (worked / "one.jsonl").read_text()


def test_missing_parts_are_listed(boxes, invoke, tmp_path):
    (boxes / "part-00001.jsonl").unlink()
    (boxes / "part-00003.jsonl").unlink()
    output = tmp_path / "all.jsonl"
    output.write_text("before")
    done = invoke("merge", boxes, "-o", output)
    assert (done.returncode, done.stdout, output.read_text()) == (6, "", "before")
    assert "part-00001.jsonl: missing: " in done.stderr
    assert "2.png" in done.stderr
    assert "part-00003.jsonl: missing" in done.stderr
    assert "2 of 7 parts, with 4 names, missing or damaged" in done.stderr
    assert "makes only the missing ones" in done.stderr


def test_damaged_parts_are_listed_and_nothing_is_written(boxes, invoke, tmp_path):
    first, last = (boxes / f"part-0000{number}.jsonl" for number in (0, 6))
    first.write_bytes(first.read_bytes()[:-20])
    last.write_bytes((boxes / "part-00001.jsonl").read_bytes())
    (boxes / "part-00002.jsonl").write_bytes(b"")
    done = invoke("merge", boxes, "-o", tmp_path / "all.csv")
    assert done.returncode == 6
    assert not (tmp_path / "all.csv").exists()
    assert "part-00000.jsonl: it is damaged" in done.stderr
    assert "part-00002.jsonl: its end is missing" in done.stderr
    assert "part-00006.jsonl: " in done.stderr
    assert "remove the damaged parts, then" in done.stderr


def test_parts_of_another_run_are_noticed(boxes, invoke, tmp_path):
    """The same names with other settings."""
    path = boxes / "part-00002.jsonl"
    *lines, last = map(json.loads, path.read_text().splitlines())
    last["part"]["run"] = "f" * 16
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, last]))
    done = invoke("merge", boxes, "-o", tmp_path / "all.jsonl")
    assert done.returncode == 6
    assert "part-00002.jsonl: it belongs to another run" in done.stderr


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "line",
    [
        *("{}", '{"source": "x"}', '{"source": 3}', "[]", "7", '{"source": "SOURCE"}'),
        *('{"source": "SOURCE", "detections": 3}', '{"source": "SOURCE", "detections": [[]]}'),
        '{"source": "SOURCE", "detections": [{"box": 1, "score": "x"}], "index": null}',
    ],
)
def test_a_record_of_another_shape_is_a_fault_of_its_part(boxes, invoke, tmp_path, name, line):
    path = boxes / "part-00001.jsonl"
    first, *rest = path.read_text().splitlines()
    line = line.replace('"SOURCE"', json.dumps(json.loads(first)["source"]))
    path.write_text("\n".join([line, *rest]) + "\n")
    (boxes / "part-00003.jsonl").write_bytes(b"")
    output = tmp_path / f"all.{name}"
    done = invoke("merge", boxes, "--format", name, "-o", output)
    assert done.returncode == 6, done.stderr
    assert "part-00001.jsonl: " in done.stderr
    assert "part-00003.jsonl: " in done.stderr
    assert not output.exists()


@pytest.mark.parametrize("name", ["part-00001.jsonl", "manifest.jsonl", "part-00001.parquet"])
def test_no_part_is_overwritten(boxes, invoke, name):
    before = {path.name: path.read_bytes() for path in boxes.iterdir()}
    for output in (boxes / name, f"s3://bucket/boxes/{name}"):
        done = invoke("merge", boxes, "-o", output)
        assert done.returncode == 2
        assert "has the name of a manifest or a part" in done.stderr
    assert {path.name: path.read_bytes() for path in boxes.iterdir()} == before


def test_one_file_is_written(worked, invoke, tmp_path):
    done = invoke("merge", worked / "jsonl", "-o", f"{tmp_path / 'all'}/")
    assert done.returncode == 2
    assert "all/ is a folder" in done.stderr
    assert not (tmp_path / "all").exists()


def test_an_empty_name_is_not_the_root(invoke):
    """As where a variable is not set."""
    done = invoke("merge", "")
    assert done.returncode == 2
    assert "no folder given" in done.stderr


def test_a_folder_that_is_no_run_is_refused(invoke, tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        done = invoke("merge", folder)
        assert done.returncode == 2
        assert "has no manifest.jsonl" in done.stderr
    assert invoke("merge", tmp_path, "-o", "all.txt").returncode == 2


def test_parquet_needs_a_file(worked, invoke):
    done = invoke("merge", worked / "jsonl", "--format", "parquet")
    assert done.returncode == 2
    assert "--format parquet needs --output" in done.stderr
