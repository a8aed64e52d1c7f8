"""`detcli merge`: what becomes of whole, missing and damaged parts."""

import hashlib
import json
import os
import shutil
from types import SimpleNamespace

import cv2
import forked
import json_lines
import number_video
import optional
import pytest
from colour_model import NAMES, build, image, image_of
from json_lines import lines, text_of
from saved_records import box, of_version_1, record

from detcli.commands.merge import _copy_records

FORMATS = ["table", "jsonl", "json", "csv", "megadetector", optional.PARQUET]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A folder with a run in shards, of images, a video, a failure and an odd name."""
    folder = tmp_path_factory.mktemp("run")
    names = str(dict(enumerate(NAMES)))
    model = folder / "colours.onnx"
    model.write_bytes(build("body", metadata={"names": names}).SerializeToString())
    images = folder / "pics"
    images.mkdir()
    for number in range(9):
        squares = []
        if number % 2:
            squares.append(("red", number % 8, 1))
        cv2.imwrite(str(images / f"{number}.png"), image_of(squares))
    (images / "5 torn.png").write_bytes((images / "5.png").read_bytes()[:100])
    (images / os.fsdecode(b"caf\xe9.png")).write_bytes((images / "3.png").read_bytes())
    (images / "ä=1.png").write_bytes((images / "3.png").read_bytes())
    video = number_video.open_writer(images / "4.mp4", (64, 64))
    for _ in range(7):
        video.write(image(("blue", 2, 2)))
    video.release()
    command = ["predict", images, folder / "absent.png", "-m", model, "-q", "--conf", "0.5"]
    formats = ["table", "jsonl", "json", "csv", "megadetector"]
    if optional.is_installed("pyarrow"):
        formats.append("parquet")
    for name in formats:
        completed = forked.run(command + ["--format", name, "-o", folder / f"one.{name}"])
        assert completed.returncode == 3, completed.stderr
    completed = forked.run(command + ["-o", f"{folder / 'jsonl'}/", "--shard-size", 2])
    assert completed.returncode == 3, completed.stderr
    return folder


@pytest.fixture
def boxes(run_folder, tmp_path):
    """A copy of its parts, which the test may damage."""
    return shutil.copytree(run_folder / "jsonl", tmp_path / "boxes")


class PartsWithoutFaults(list):
    """Records of parts that are all there."""

    faults = ()


class MarksThatFail:
    """Marks that no record can be corrected by."""

    def corrected(self, record):
        raise ValueError(record["source"])


def test_the_first_error_of_a_record_is_reported():
    """Later ones may only follow from it."""
    records = PartsWithoutFaults([record("a.png"), record("b.png")])
    manifest = SimpleNamespace(name_count=2)
    with pytest.raises(ValueError, match=r"a\.png"):
        _copy_records(
            merging=records,  # type: ignore[arg-type]
            manifest=manifest,  # type: ignore[arg-type]
            sink=None,
            answers=None,
            marks=MarksThatFail(),  # type: ignore[arg-type]
            show_progress=False,
        )


def content_of(path):
    """The bytes of a file, or None where there is none."""
    if path.is_file():
        return path.read_bytes()
    return None


@pytest.fixture
def merge(invoke, tmp_path):
    """Merge into a file, which has to be left alone unless all parts are whole; returns it.

    Two records are errors, which makes the exit code 3.
    """

    def run(folder, *options, output="all.jsonl", code=3, says=()):
        path = tmp_path / output
        before = content_of(path)
        completed = invoke("merge", folder, "-o", output, options, cwd=tmp_path)
        assert completed.returncode == code, completed.stderr
        assert completed.stdout == "", completed.stderr
        messages = [says] if isinstance(says, str) else says
        for message in messages:
            assert message in completed.stderr
        if code != 3:
            assert content_of(path) == before
        return path

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_merged_parts_are_what_one_run_writes(run_folder, merge, name):
    says = ["wrote 20 records of 7 parts", "2 records with an error: 1 "]
    says += ["1 DecodeError: a damaged PNG", "1 SourceError: no such file"]
    output = merge(run_folder / "jsonl", "--format", name, output=f"all.{name}", says=says)
    if name == "parquet":
        parquet = optional.require("pyarrow.parquet")
        # Its row groups may be cut elsewhere.
        assert parquet.read_table(output).equals(parquet.read_table(run_folder / "one.parquet"))
    else:
        assert output.read_bytes() == (run_folder / f"one.{name}").read_bytes()


def test_parquet_parts_of_an_earlier_version_are_refused(boxes, merge):
    manifest = boxes / "_manifest.jsonl"
    manifest.write_text(manifest.read_text().replace('"jsonl"', '"parquet"', 1))
    says = ["boxes are Parquet, which this version does not read", "hint: merge them with detcli "]
    merge(boxes, code=2, says=says)


def test_a_folder_of_an_earlier_version_is_merged_but_not_gone_on_with(
    boxes, run_folder, merge, invoke
):
    (boxes / "_manifest.jsonl").rename(boxes / "manifest.jsonl")
    merge(boxes, says="wrote 20 records of 7 parts")
    completed = invoke(
        "predict", run_folder / "pics", "-m", run_folder / "colours.onnx", "-o", f"{boxes}/"
    )
    assert completed.returncode == 2
    assert ("has manifest.jsonl, but no _manifest" in completed.stderr) is True


def part_of_version_1(path):
    """Write a part anew, with its records as version 1 had them."""
    records = records_in(path)
    part = records[-1].pop("part")
    records = [of_version_1(fields) for fields in records]
    digest = hashlib.sha256()
    for fields in records:
        shown = fields | {"source": plain(fields["source"])}
        text = json.dumps(shown, ensure_ascii=False)
        digest.update(f"{text}\n".encode("utf-8", "backslashreplace"))
    records[-1]["part"] = part | {"sha256": digest.hexdigest()}
    text = ""
    for fields in records:
        text += json.dumps(fields, ensure_ascii=False) + "\n"
    path.write_text(text, errors="backslashreplace")


def records_in(path):
    return json_lines.lines(path.read_text())


def plain(source):
    return source.encode("utf-8", "backslashreplace").decode()


def test_parts_of_version_1_are_merged(run_folder, boxes, merge):
    for path in boxes.glob("part-*"):
        part_of_version_1(path)
    records = records_in(merge(boxes))
    assert records == records_in(run_folder / "one.jsonl")


def test_records_go_to_standard_output(run_folder, invoke):
    completed = invoke("merge", f"{run_folder / 'jsonl'}/")
    assert completed.returncode == 3
    assert completed.stdout == (run_folder / "one.jsonl").read_text()


def test_missing_parts_are_listed(boxes, merge, tmp_path):
    (boxes / "part-00001.jsonl").unlink()
    (boxes / "part-00003.jsonl").unlink()
    (tmp_path / "all.jsonl").write_text("before")
    says = ["part-00001.jsonl: missing: ", "2.png", "part-00003.jsonl: missing"]
    says += ["2 of 7 parts, with 4 names, missing or damaged", "hint: run the command that made"]
    merge(boxes, code=6, says=says + ["makes only the missing ones"])


def test_damaged_parts_are_listed_and_nothing_is_written(boxes, merge):
    """Two are cut off, one has the records of another, and one is of a run with other settings."""
    parts = [boxes / f"part-0000{number}.jsonl" for number in range(7)]
    parts[0].write_bytes(parts[0].read_bytes()[:-20])
    parts[2].write_bytes(b"")
    parts[6].write_bytes(parts[1].read_bytes())
    records = records_in(parts[3])
    records[-1]["part"]["run"] = "f" * 16
    parts[3].write_text(text_of(records))
    says = ["part-00000.jsonl: it is damaged", "part-00002.jsonl: its end is missing"]
    says += ["part-00003.jsonl: it belongs to another run", "part-00006.jsonl: "]
    merge(boxes, output="all.csv", code=6, says=says + ["hint: remove the damaged parts, then"])


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"source": "x"}',
        '{"source": 3}',
        "[]",
        "7",
        '{"source": "SOURCE"}',
        '{"source": "SOURCE", "detections": 3}',
        '{"source": "SOURCE", "detections": [[]]}',
        '{"source": "SOURCE", "detections": [{"box": 1, "score": "x"}], "index": null}',
    ],
)
def test_a_record_of_another_shape_is_a_fault_of_its_part(boxes, merge, name, line):
    path = boxes / "part-00001.jsonl"
    lines = path.read_text().splitlines()
    source = json.loads(lines[0])["source"]
    lines[0] = line.replace('"SOURCE"', json.dumps(source))
    path.write_text("\n".join(lines) + "\n")
    (boxes / "part-00003.jsonl").write_bytes(b"")
    says = ["part-00001.jsonl: ", "part-00003.jsonl: "]
    merge(boxes, "--format", name, output=f"all.{name}", code=6, says=says)


@pytest.mark.parametrize(
    "name",
    [
        "part-00001.jsonl",
        "_manifest.jsonl",
        "manifest.jsonl",
    ],
)
@pytest.mark.parametrize("folder", ["boxes", "s3://bucket/boxes"])
def test_no_part_is_overwritten(boxes, merge, folder, name):
    says = "has the name of a manifest or a part"
    merge(boxes, output=f"{folder}/{name}", code=2, says=says)


@pytest.mark.parametrize(
    ("folder", "output", "options", "says"),
    [
        ("RUN_FOLDER", "all/", [], "all/ is a folder"),
        ("RUN_FOLDER", "-", ["--format", "parquet"], "--format parquet needs --output"),
        ("", "all.jsonl", [], "no folder given"),  # as where a variable is not set
        (".", "all.jsonl", [], "has no _manifest.jsonl"),
        ("absent", "all.jsonl", [], "there is no file or folder absent"),
        (".", "all.txt", [], "the suffix .txt names no format"),
    ],
)
def test_requests_that_are_refused(run_folder, merge, folder, output, options, says):
    folder = run_folder / "jsonl" if folder == "RUN_FOLDER" else folder
    merge(folder, options, output=output, code=2, says=says)


def record_ending_with(records, ending):
    """The first record whose source ends with `ending`."""
    for fields in records:
        if fields["source"].endswith(ending):
            return fields
    raise LookupError(ending)


def test_marks_are_applied_to_the_records_of_a_run_in_shards(merge, boxes, tmp_path):
    whole = json_lines.lines(merge(boxes).read_text())
    red_record = record_ending_with(whole, "/1.png")
    (red,) = red_record["detections"]
    fractions = [red[side] / 64 for side in ("x1", "y1", "x2", "y2")]
    place = red_record["source"].rpartition("/")[0]
    stone = {"source": place, "class_name": "red", "repeated": 5, "box_fractions": fractions}
    dropped = record_ending_with(whole, "/0.png")["source"]
    marks = [{"mark": "drop", **stone}, {"mark": "drop", "source": dropped}]
    (tmp_path / "marks.json").write_text(json.dumps(marks))

    says = ["without what 1 mark dropped, with 1 group of repeats marked"]
    path = merge(boxes, "--apply", "marks.json", output="corrected.jsonl", says=says)
    corrected = json_lines.lines(path.read_text())
    assert len(corrected) == len(whole) - 1
    for fields in corrected:
        for detection in fields.get("detections", ()):
            is_stone = fields["source"] == red_record["source"]
            assert detection.get("repeated") == (5 if is_stone else None)

    (tmp_path / "marks.json").write_text(json.dumps([{"mark": "drop", "source": "gone.png"}]))
    merge(boxes, "--apply", "marks.json", output="none.jsonl", code=6, says=["fit no record"])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"group": 5}, "marks[0].group is not a key of a mark"),
        ({"detection": 0}, "a mark of a.png has detection, but no box"),
        ({"class_name": "red", "score": 0.5}, "a mark of a.png has class_name, but no box"),
        ({"mark": "Drop"}, 'marks[0].mark is "Drop"'),
    ],
)
def test_a_mark_that_says_less_than_it_means_drops_nothing(merge, boxes, tmp_path, fields, says):
    """Without a box it would drop the whole image."""
    mark = {"mark": "drop", "source": "a.png", **fields}
    (tmp_path / "marks.json").write_text(json.dumps([mark]))
    merge(boxes, "--apply", "marks.json", output="none.jsonl", code=2, says=[says])


@pytest.mark.parametrize("name", ["csv", optional.PARQUET])
def test_bursts_of_records_stay_in_a_table(invoke, tmp_path, name):
    bursts = {"burst": 4, "burst_score": 0.5}
    dated = record("a.png", box(0.5)) | bursts | {"taken": "2026-11-29T12:00:00"}
    text = f"{json.dumps(dated)}\n{json.dumps(record('b.png'))}\n"
    (tmp_path / "boxes.jsonl").write_text(text)
    for command in (f"boxes.jsonl -o all.{name}", f"all.{name} -o again.jsonl"):
        completed = invoke("merge", command.split(), cwd=tmp_path)
        assert completed.returncode == 0, completed.stderr
    first, second = lines((tmp_path / "again.jsonl").read_text())
    assert first.items() >= bursts.items()
    assert "burst" not in second
