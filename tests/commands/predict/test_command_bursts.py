"""`--burst` of `detcli predict` and `detcli merge`: photographs of one moment belong together."""

import csv
import shutil

import optional
import photographs
import pytest
from json_lines import column_of, lines, optional_column_of, records_by_source

pytestmark = pytest.mark.usefixtures("season")


@pytest.fixture
def season(make_image, tmp_path):
    """Two folders with photographs of a camera each, one without a time and a damaged one."""
    red = make_image("red.png", ("red", 2, 3)).read_bytes()
    empty = make_image("empty.png").read_bytes()
    for site in ("north", "south"):
        folder = tmp_path / "season" / site
        folder.mkdir(parents=True)
        times = ["00:00:10", "00:01:10", "00:02:11", "23:59:59"]
        for number, time in enumerate(times):
            png = red if number == 1 else empty
            date = f"2021:05:06 {time}\0".encode()
            (folder / f"{number}.png").write_bytes(photographs.png_with_times(png, date))
    (tmp_path / "season/south/undated.png").write_bytes(red)
    (tmp_path / "season/south/torn.png").write_bytes(red[:60])
    return tmp_path / "season"


BURSTS = [0, 0, 1, 2, 3, 3, 4, 5, None, None]


def test_a_run_into_a_file_has_bursts(predict, tmp_path):
    predict("season -r --conf 0.9 --burst 60s -o boxes.jsonl", code=3)
    records = lines((tmp_path / "boxes.jsonl").read_text())
    assert optional_column_of(records, "burst") == BURSTS
    best_score = max(records[1]["detections"], key=lambda detection: detection["score"])["score"]
    burst_scores = optional_column_of(records[:4], "burst_score")
    assert burst_scores == [best_score, best_score, 0, 0]
    for record in records:
        record.pop("burst", None)
        record.pop("burst_score", None)
    assert predict("season -r --conf 0.9", code=3).records == records


def test_csv_and_parquet_have_bursts(predict, tmp_path):
    predict("season -r --conf 0.9 --burst 60s -o boxes.csv", code=3)
    rows = list(csv.DictReader((tmp_path / "boxes.csv").read_text().splitlines()))
    assert list(rows[0])[-2:] == ["burst", "burst_score"]
    cells = []
    for burst in BURSTS:
        cells.append("" if burst is None else str(burst))
    assert column_of(rows, "burst") == cells

    parquet = optional.require("pyarrow.parquet")
    predict("season -r --conf 0.9 --burst 60s -o boxes.parquet", code=3)
    rows = parquet.read_table(tmp_path / "boxes.parquet").to_pylist()
    assert column_of(rows, "burst") == BURSTS
    assert rows[-1]["burst_score"] is None


def test_without_the_option_there_are_no_columns_for_it(predict, tmp_path):
    predict("season -r --conf 0.9 -o boxes.csv", code=3)
    header = (tmp_path / "boxes.csv").read_text().splitlines()[0]
    assert header.endswith("taken,taken_offset")


@pytest.mark.usefixtures("shards_here")
@pytest.mark.parametrize("name", ["boxes.jsonl", "boxes.csv", optional.PARQUET])
def test_merged_parts_have_the_bursts_of_one_run(predict, invoke, tmp_path, name):
    if name == "parquet":
        name = "boxes.parquet"
    predict(f"season -r --conf 0.9 --burst 60s -o {name}", code=3)
    predict("season -r --conf 0.9 -o parts/ --shard-size 3", code=3)
    completed = invoke("merge", "parts", "--burst", "60s", "-o", f"merged-{name}", cwd=tmp_path)
    assert completed.returncode == 3, completed.stderr
    assert (tmp_path / f"merged-{name}").read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.usefixtures("shards_here")
def test_merge_writes_bursts_to_standard_output(predict, invoke, tmp_path):
    predict("season -r --conf 0.9 -o parts/", code=3)
    completed = invoke("merge", "parts", "--burst", "60s", "--format", "jsonl", cwd=tmp_path)
    assert optional_column_of(lines(completed.stdout), "burst") == BURSTS


@pytest.mark.usefixtures("shards_here")
def test_merge_refuses_a_format_without_bursts(predict, invoke, tmp_path):
    predict("season -r --conf 0.9 -o parts/", code=3)
    completed = invoke("merge", "parts", "--burst", "60s", "--format", "table", cwd=tmp_path)
    assert completed.returncode == 2
    assert "--burst is not part of the format table" in completed.stderr


REFUSALS = [
    ("", "standard output gets each as it comes"),
    ("-o - --format jsonl", "standard output gets each as it comes"),
    ("-o boxes.jsonl --follow", "this run may never end"),
    ("--resume boxes.jsonl", "would not know the photographs of the runs before"),
    ("-o boxes/", "then detcli merge boxes/ --burst TIME adds it"),
    ("-o boxes.json --format labelstudio", "not part of the format labelstudio"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSALS)
def test_what_cannot_have_bursts_says_why(predict, tmp_path, options, reason):
    completed = predict(f"season -r --conf 0.9 --burst 60s {options}", code=2)
    assert reason in " ".join(completed.stderr.split())
    assert not (tmp_path / "boxes.jsonl").exists()


def test_a_camera_cannot_have_bursts(predict):
    completed = predict("camera:0 --burst 60s -o boxes.jsonl", code=2)
    assert "this run may never end" in " ".join(completed.stderr.split())


def test_what_is_no_time_is_refused(predict):
    predict("season -r --conf 0.9 --burst soon -o boxes.jsonl", code=2, says="'soon' is not a time")


def test_an_archive_has_its_times_too(predict, season, tmp_path):
    shutil.make_archive(str(tmp_path / "season"), "tar", season)
    predict("season.tar --burst 2min -o boxes.jsonl", code=3)
    records = lines((tmp_path / "boxes.jsonl").read_text())
    bursts = []
    for record in records_by_source(records).values():
        if record.get("burst") is not None:
            bursts.append(record["burst"])
    assert len(bursts) == 8
    assert len(set(bursts)) == 4
