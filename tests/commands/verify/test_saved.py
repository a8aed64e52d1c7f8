"""`detcli verify A.jsonl B.jsonl`: saved runs, as a user compares them."""

import gzip
import json
import os
import threading
import unicodedata

import pages
import pytest
from json_lines import column_of
from saved_records import SETTINGS, SHA, box, error, of_version_1, record, report_of

from detcli.config.inputs import InputOptions
from detcli.page.find_images import Finder


@pytest.fixture
def write_records(tmp_path):
    """Write records; the first gets settings, unless it has some."""

    def write(name, records, **settings):
        first = {"settings": SETTINGS | settings} | records[0]
        lines = json.dumps(first) + "\n"
        for entry in records[1:]:
            lines += json.dumps(entry) + "\n"

        content = lines.encode()
        if name.endswith(".gz"):
            content = gzip.compress(content)
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def compare_records(verify, write_records):
    """Compare two lists of records: exit code, text on stderr, and the report."""

    def run(left, right, *options, **settings):
        completed = verify(
            write_records("a.jsonl", left), write_records("b.jsonl", right, **settings), options
        )
        return completed.returncode, completed.stderr, report_of(completed)

    return run


def test_two_runs_that_agree(compare_records, tmp_path):
    second_record = record("x/2.png", box(0.5, 1), box(0.4))
    left = [record("x/1.png", box()), second_record]
    right = [record("x/1.png", box(0.9005)), second_record]
    code, stderr, report = compare_records(left, right)
    assert code == 0
    assert stderr == ""
    assert report["agree"] is True
    assert report["compared"] == 2
    assert report["unlike"] == []
    assert report["left"] == {
        "model": "m", "sha256": SHA, "device": "cpu", "selection": None, "precision": None,
        "records": str(tmp_path / "a.jsonl"),
    }  # fmt: skip
    detections = report["detections"]
    assert detections["pairs"] == 3
    assert detections["conf"] == 0.25
    assert detections["max_det"] == 300
    assert detections["largest_score_difference"] == pytest.approx(0.0005, rel=1e-3)


def test_records_of_version_1_are_compared(compare_records):
    records = [record(f"caf\udce9{n}.png", box(), device="openvino:CPU (bf16)") for n in range(3)]
    old_records = [of_version_1(entry) for entry in records]
    code, stderr, report = compare_records(old_records, records)
    assert code == 0
    assert stderr == ""
    assert report["compared"] == 3
    assert report["left"]["device"] == "openvino:CPU"
    assert report["left"]["precision"] == "bfloat16"


def test_images_that_agree_are_not_kept(compare_records):
    """But for the worst, so that memory does not grow with runs that agree."""
    left = [record(f"{number}.png", box()) for number in range(50)]
    right = list(left)
    for number in range(20):
        left.append(record(f"near{number}.png", box(0.9)))
        right.append(record(f"near{number}.png", box(0.9 - number / 1e5)))
    _, _, report = compare_records(left, right)
    assert report["compared"] == report["detections"]["pairs"] == 70
    names = column_of(report["detections"]["pictures"], "source")
    assert names == [f"near{number}.png" for number in range(10, 20)]


@pytest.mark.parametrize(
    ("folder", "other_folder", "names"),
    [
        ("/home/ann/pics/{}", "/mnt/data/photos/{}", ["1.png", "2.png"]),
        ("pics/{}", "/home/bob/pics/{}", ["1.png", "sub/1.png"]),
        ("{}", "deep/in/a/folder/{}", ["a/1.png", "b/1.png", "b/2.png"]),
        ("/data/{}", "C:\\pics\\{}", ["1.png", "sub/1.png"]),
        ("{}", "été/{}", ["é.png", "1.png"]),  # macOS decomposes letters
        ("pics/{}", "./pics/{}", ["1.png"]),
    ],
)
def test_folders_may_have_other_names(compare_records, folder, other_folder, names):
    slash = "\\" if "\\" in other_folder else "/"
    left = []
    right = []
    for number, name in enumerate(names):
        other_name = unicodedata.normalize("NFD", name).replace("/", slash)
        left.append(record(folder.format(name), box(0.9 - number / 10)))
        right.append(record(other_folder.format(other_name), box(0.9 - number / 10)))
    code, stderr, report = compare_records(left, right[::-1])
    assert code == 0
    assert stderr == ""
    assert report["compared"] == len(names)


def test_a_part_of_the_images(compare_records):
    """By whole names where runs have some in common, else below the folder of each run."""
    left = [record("p/1.png", box()), record("p/sub/1.png", box(0.5))]
    _, stderr, report = compare_records(left, [record("p/sub/1.png", box(0.5))])
    assert report["left_only"] == ["p/1.png"]
    assert report["unlike"] == []
    assert report["detections"]["disagreeing"] == 0
    _, stderr, report = compare_records(
        left, [record("/q/1.png", box()), record("/q/2.png", box())]
    )
    assert report["left_only"] == ["p/sub/1.png"]
    assert report["right_only"] == ["/q/2.png"]
    assert "names below p and /q, and 2 of them have no counterpart" in stderr
    code, stderr, report = compare_records(left, [record("2.png", box())])
    assert report["unlike"] == [
        "inputs are paired by their names below p and ., and 3 of them have no counterpart"
    ]
    assert code == 6  # there is nothing to show
    assert ("--report" in stderr) is False


def test_images_of_one_run_only(compare_records):
    left = [record(f"{number}.png", box()) for number in range(6)]
    code, stderr, report = compare_records(
        left, [record("0.png", box()), record("other.png", box())]
    )
    assert code == 6
    assert ("--bisect" in stderr) is False
    assert report["left_only"] == ["1.png", "2.png", "3.png", "4.png", "5.png"]
    assert report["right_only"] == ["other.png"]
    assert report["failures"] == [
        "5 inputs (1.png, 2.png, 3.png, and 2 more) only on the left",
        "1 input (other.png) only on the right",
    ]
    assert report["detections"]["pairs"] == 1


def test_errors(compare_records):
    """On both sides one is a failed input, on one side a difference."""
    records = [record("1.png", box()), error("2.png")]
    code, _, report = compare_records(records, records)
    assert code == 3
    assert report["agree"] is True
    assert report["failed"] == [{"source": "2.png", "error": "left: torn; right: torn"}]
    code, stderr, report = compare_records(records, [records[0], record("2.png", box())])
    assert code == 6
    assert "1 input (2.png) with an error on one side only" in stderr
    assert report["failed"] == [{"source": "2.png", "error": "left: torn"}]


def test_other_files_of_the_same_name(compare_records):
    left = [
        record("1.png", box(), sha256="1" * 64),
        record("2.png", box(), sha256="1" * 64),
    ]
    code, _, report = compare_records(left, [left[0], record("2.png", box(), sha256="2" * 64)])
    assert code == 6
    assert report["other_files"] == ["2.png"]
    _, _, report = compare_records(
        left, [record("1.png", box(), width=800), record("2.png", box())]
    )
    assert report["failed"] == [
        {"source": "1.png", "error": "400x40 on the left, 800x40 on the right"}
    ]
    assert report["compared"] == 1
    assert report["other_files"] == ["1.png"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"conf": 0.5}, "conf is 0.25 and 0.5"),
        ({"max_det": 100}, "max_det is 300 and 100"),
        ({"tile": "640,overlap=0.2"}, "tile is None and 640,overlap=0.2"),
        ({"model_sha256": "cd" * 32}, "model is m (abababababab) and m (cdcdcdcdcdcd)"),
        ({"half": True}, None),
        ({"zones": ["door"]}, None),
    ],
)
def test_unlike_settings_are_said(compare_records, settings, says):
    """They do not fail by themselves, as two models may be compared."""
    records = [record("1.png", box())]
    code, stderr, report = compare_records(records, records, **settings)
    assert code == 0
    assert report["unlike"] == ([says] if says else [])
    assert report["detections"]["max_det"] == settings.get("max_det", 300)
    assert stderr == (f"detcli: warning: {says}\n" if says else "")
    code, stderr, _ = compare_records(records, [record("1.png")], **settings)
    assert code == 6
    assert (f"hint: the runs are not alike: {says}; --report" in stderr) == bool(says)


@pytest.mark.parametrize(
    ("score", "settings", "missing"),
    [
        (0.2509, {}, 0),
        (0.2511, {}, 1),
        (0.2509, {"conf": 0.1}, 1),
        (0.5009, {"conf": 0.1, "class_conf": {"0": 0.5}}, 0),
        (0.5011, {"conf": 0.1, "class_conf": {"0": 0.5}}, 1),
        (0.2509, {"conf": "high", "class_conf": {"x": 1, "0": "y"}}, 0),
        (0.5, {"class_conf": {"0": 7}}, 1),
    ],
)
def test_a_box_next_to_the_confidence_may_be_below_it_on_the_other_side(
    compare_records, score, settings, missing
):
    left = record("1.png", box(0.9), box(score, 1), settings=SETTINGS | settings)
    _, _, report = compare_records([left], [record("1.png", box(0.9))], "--conf", 0.25, **settings)
    detections = report["detections"]
    assert detections["missing"] == missing
    assert detections["borderline"] == 1 - missing


def test_scores_count_from_the_higher_confidence_on(compare_records):
    left = [record("1.png", box(0.9), box(0.4, 1))]
    right = [record("1.png", box(0.9))]
    _, _, report = compare_records(left, right, conf=0.5)
    assert report["agree"] is True
    assert report["detections"]["conf"] == 0.5
    _, _, report = compare_records(left, right, "--conf", 0.3, conf=0.5)
    assert report["detections"]["borderline"] == 1


def test_classes_that_count_from_lower_scores_on_are_compared_there(compare_records):
    settings = {"conf": 0.5, "class_conf": {"0": 0.3, "1": 0.6}}
    left = record("1.png", box(0.9), box(0.4, 1), settings=SETTINGS | settings)
    code, _, report = compare_records([left], [record("1.png", box(0.9))], **settings)
    assert code == 6
    assert report["detections"]["conf"] == 0.3
    assert report["detections"]["missing"] == 1
    code, _, report = compare_records(
        [left], [record("1.png", box(0.9))], conf=0.5
    )  # which holds fewer
    assert code == 0
    assert report["detections"]["conf"] == 0.5


def test_what_runs_do_not_say(reports, verify, compare_records, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record("1.png", box())) + "\n")
    unlike = reports(0, tmp_path / "a.jsonl", tmp_path / "b.jsonl")["unlike"]
    left_message, right_message = unlike
    assert left_message.startswith("the left run does not say its settings, ")
    assert right_message.startswith("the right run does not say its settings,")
    assert verify(tmp_path / "a.jsonl", tmp_path / "b.jsonl", "-q").stderr == ""
    mixed = record("2.png", box(), settings=SETTINGS | {"conf": 0.3})
    right = [record("1.png", box(name="auto\x1b[31m")), record("2.png", box())]
    _, stderr, _ = compare_records([record("1.png", box(name="car")), mixed], right)
    for sentence in (
        "the left run has records of 2 settings",
        "the left run has several names for class 0",
        "1 class has another name: 0 is car and auto\\x1b[31m",
    ):
        assert sentence in stderr


@pytest.mark.parametrize(
    ("fields", "options", "score"),
    [
        ({"provenance": {"precision": "float16"}}, [], 0.02),
        ({"device": "openvino:CPU", "precision": "bf16"}, [], 0.05),
        ({"device": "openvino:CPU", "precision": "bf16"}, ["--tolerance", "score=0.3"], 0.3),
    ],
)
def test_precision_decides_the_tolerance(compare_records, fields, options, score):
    left = record("1.png", box(), provenance={"precision": "float32"})
    _, _, report = compare_records([left], [record("1.png", box(), **fields)], options)
    precision = report["right"]["precision"]
    assert report["unlike"] == [f"precision is float32 and {precision}"]
    assert report["tolerance"]["score"] == score


def test_frames_are_paired_by_number(compare_records):
    frames = []
    frames_elsewhere = []
    for number in range(9):
        frame = record("a.mp4", box(0.9 - number / 100), frame=number, time_s=number / 10)
        frames.append(frame)
        frames_elsewhere.append(frame | {"source": "/x/a.mp4"})
    _, _, report = compare_records(frames[::2], frames_elsewhere)
    assert report["compared"] == 5
    assert report["detections"]["disagreeing"] == 0
    assert report["right_only"] == [
        "/x/a.mp4 frame 1",
        "/x/a.mp4 frame 3",
        "/x/a.mp4 frame 5",
        "/x/a.mp4 frame 7",
    ]


def test_records_that_come_twice_or_in_another_order(compare_records):
    twice = [record("1.png", box()), record("1.png", box())]
    assert compare_records(twice, twice)[2]["compared"] == 2
    assert compare_records(twice, twice[:1])[2]["left_only"] == ["1.png"]
    records = [record(f"{n}.png", box(0.9 - n / 100)) for n in range(9)]
    reordered = records[4:] + [records[0] | {"settings": SETTINGS}] + records[1:4]
    _, _, report = compare_records(records, reordered)
    assert report["agree"] is True
    assert report["compared"] == 9
    assert report["unlike"] == []


@pytest.mark.parametrize("form", ["a.jsonl.gz", "pipe", "a.json", "journal"])
def test_forms_of_records(verify, write_records, tmp_path, form):
    records = [record("1.png", box()), record("2.png", box(0.5))]
    right = write_records("b.jsonl", records)
    if form == "pipe":
        left = tmp_path / "pipe"
        os.mkfifo(left)
        threading.Thread(target=left.write_bytes, args=[right.read_bytes()], daemon=True).start()
    elif form == "a.json":
        left = tmp_path / form
        lines = right.read_text().splitlines()
        left.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    else:
        left = write_records(form, records)
    assert report_of(verify(left, right))["compared"] == 2


def test_a_run_in_shards(invoke, detcli, make_model, make_image, tmp_path):
    for number in range(3):
        make_image(f"pics/{number}.png", ("red", number, number))
    model = make_model()
    predict = ("predict", tmp_path / "pics", "-m", model, "-q", "-o")
    assert detcli(predict, f"{tmp_path}/boxes/").returncode == 0
    assert invoke(predict, tmp_path / "b.jsonl", "--provenance").returncode == 0
    completed = invoke("verify", tmp_path / "boxes", tmp_path / "b.jsonl")
    assert completed.returncode == 0
    assert completed.stderr == ""
    report = report_of(completed)
    assert report["left"]["sha256"] == report["right"]["sha256"]
    assert report["compared"] == 3


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"\x1f\x8b\x08\x00", 3, "cannot read"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 30, 3, "cannot read"),
        (b"\n" * 9 + b"{}", 2, "line 10 of"),
        (b'{"schema_version": 1, "source": "torn', 2, "line 1 of"),
        (None, 3, "cannot read"),
        (b"", 6, "only on the right"),
    ],
)
def test_files_that_cannot_be_compared(verify, write_records, tmp_path, content, code, says):
    path = tmp_path / "a.jsonl"
    if content is not None:
        path.write_bytes(content)
    completed = verify(path, write_records("b.jsonl", [record("1.png", box())]))
    assert completed.returncode == code
    assert says in completed.stderr
    assert "Traceback" not in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{a}", "holds saved records"),
        ("{a} yolov10n", "a.jsonl holds saved records, and yolov10n is neither"),
        ("yolov10n {a}", "a.jsonl holds saved records, and yolov10n is neither"),
        ("{a} {a} --half", "--half applies to running a model"),
        ("{a} {a} --tensors", "--tensors applies to running a model"),
        ("{a} {a} --bisect", "--bisect applies to running a model"),
        ("{a} {a} --box-format xyxy", "--box-format applies to running a model"),
        ("{a} {a} --preprocess stretch", "--preprocess applies to running a model"),
        ("{a} {a} --imgsz 64", "--imgsz applies to running a model"),
        ("{a} {a} --nms 0.5", "--nms applies to running a model"),
        ("{a} {a} --random 0", "--random applies to running a model"),
        ("{a} {a} --against cpu", "--against applies to running a model"),
        ("{a} {a} --device cpu", "--device applies to running a model"),
        ("{a} {a} --recursive", "--recursive needs --images"),
        ("{a} {a} --conf 2", "conf is 2"),
        ("{a} {a} --iou -1", "--iou is -1"),
        ("{a} {a} --images x --images y", "in one folder"),
        ("{a} {a} --tolerance score=-1", "score is -1"),
        ("a.onnx --images x --coco-images y", "--coco-images needs"),
        (f"{{a}} {'x' * 300}", "holds saved records"),
    ],
)
def test_requests_that_do_not_fit_saved_records(verify, write_records, arguments, says):
    path = write_records("a.jsonl", [record("1.png", box())])
    completed = verify(arguments.format(a=path).split())
    assert completed.returncode == 2
    assert says in completed.stderr


def test_a_device_of_the_users_defaults_does_not_matter(verify, write_records, monkeypatch):
    monkeypatch.setenv("DETCLI_DEVICE", "cuda:7")
    path = write_records("a.jsonl", [record("1.png", box())])
    assert verify(path, path).returncode == 0


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "field",
    [
        {"settings": {"conf": [], "half": "x", "model_sha256": 1, "class_conf": [1], "tile": {}}},
        {"settings": {"model_sha256": "x", "max_det": -1, "conf": -1}},
        {"provenance": {"precision": ["float16"], "detcli": {}}},
        {"settings": {"class_conf": {"9" * 5000: 0.5, "٣": 0.1}, "x": nested(800)}},
        {"settings": {"conf": float("nan"), "max_det": 10**400}},
        {"model": "\x1b[31m", "device": "(" * 99},
    ],
)
def test_settings_of_strangers_are_only_text(verify, write_records, field):
    left = write_records("a.jsonl", [record("1.png", box(), **field)])
    right = write_records("b.jsonl", [record("1.png", box())])
    certificate = left.with_name("c.json")
    completed = verify(left, right, "--format", "table", "--certificate", certificate)
    assert completed.returncode == 0, completed.stderr
    assert "\x1b" not in completed.stdout + completed.stderr


def test_images_are_shown_where_they_are_found(compare_records, make_image, tmp_path):
    make_image("now/1.png", size=(40, 400))
    left = [record("/gone/1.png", box()), record("/gone/2.png", box())]
    right = [record("/other/1.png"), record("/other/2.png")]
    page = tmp_path / "page"
    code, _, report = compare_records(left, right, "--images", tmp_path / "now", "--report", page)
    assert code == 6
    assert len(pages.images(page)) == 1
    (page_run,) = pages.runs(page)
    assert dict(page_run["facts"])["left records"] == report["left"]["records"]


# A yardstick: the differences of two files, counted without anything of detcli.


def counted(left, right):
    """Boxes on the left only, on the right only, and pairs; scores are all above 0.3."""
    right_boxes = {entry["source"]: entry["detections"] for entry in right}
    missing = extra = paired = 0
    for entry in left:
        unpaired = list(right_boxes[entry["source"]])
        for detection in entry["detections"]:
            match = counterpart(detection, unpaired)
            if match is None:
                missing += 1
            else:
                unpaired.remove(match)
                paired += 1
        extra += len(unpaired)
    return missing, extra, paired


def counterpart(detection, candidates):
    """The first candidate of the same class that overlaps enough; None if there is none."""
    for candidate in candidates:
        # Two boxes of 40 pixels have an IoU of 0.5 where one is 40 / 3 further right.
        is_near = abs(candidate["x1"] - detection["x1"]) <= 40 / 3
        if candidate["class_id"] == detection["class_id"] and is_near:
            return candidate
    return None


def random_boxes(random):
    """Boxes of three classes in four columns, about a fifth of them left out; best first."""
    boxes = []
    for column in range(4):
        for class_id in range(3):
            if random.random() < 0.8:
                score = round(random.uniform(0.3, 0.99), 4)
                boxes.append(box(score, column, float(random.normal(0, 4)), class_id))
    return sorted(boxes, key=lambda detection: -detection["score"])


def test_counts_are_those_of_another_program(compare_records, random):
    """Boxes of one class are apart, so pairs are unambiguous."""
    left = []
    right = []
    for number in range(40):
        left.append(record(f"{number}.png", *random_boxes(random)))
        right.append(record(f"{number}.png", *random_boxes(random)))

    _, _, report = compare_records(left, right)
    detections = report["detections"]
    counts = detections["missing"], detections["extra"], detections["pairs"]
    assert counts == counted(left, right)
    assert min(counts) > 10


def test_a_record_waits_alone_in_memory(write_records, monkeypatch):
    """In like order, what waits does not grow with the run."""
    from detcli.commands.verify import saved_run as module

    most_waiting = 0

    class Counting(module.defaultdict):
        def __setitem__(self, key, value):
            nonlocal most_waiting
            super().__setitem__(key, value)
            most_waiting = max(most_waiting, len(self))

        def __missing__(self, key):
            self[key] = self.default_factory()
            return self[key]

    monkeypatch.setattr(module, "defaultdict", Counting)
    records = [record(f"{number}.png") for number in range(300)]
    left_path = str(write_records("a.jsonl", records))
    right_path = str(write_records("b.jsonl", records))
    finder = Finder(None, InputOptions())
    left = module.SavedRun.read(left_path, left_path, finder)
    right = module.SavedRun.read(right_path, right_path, finder)
    assert len(list(right.pairs(left))) == 300
    assert most_waiting == 1


def test_nothing_to_look_at(verify, tmp_path):
    (tmp_path / "a.jsonl").touch()
    completed = verify(tmp_path / "a.jsonl", tmp_path / "a.jsonl", "-q")
    assert completed.returncode == 3
    assert "hint: name records of the same images" in completed.stderr
