"""docs/recipes.md is executed, and shows what its commands write; other programs read it."""

import codecs
import csv
import json
import os
import random
import re
import shutil
import sys
import zipfile
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import colour_model
import cv2
import number_video
import numpy as np
import optional
import pytest
import yaml
from colour_model import image
from documentation.shells import ROOT, blocks, page, run, section, shell, skip_without_jq, works
from folders import names_in
from json_lines import column_of, detection_counts, lines, records_with
from PIL import Image as PillowImage
from PIL import ImageSequence
from reviews import answer
from thinning import only_whole, thin

from detcli import Detector, Settings
from detcli.config.values import Tiling
from detcli.data.geometry import overlap

pytestmark = pytest.mark.slow

PAGE = page("recipes")
IMAGES = {
    "found/sheet.jpg": "codes-tiles.jpg",
    "texts/demo.jpg": "codes-texts.jpg",
    "read/shelf.jpg": "codes-shelf.jpg",
    "read/table.jpg": "codes-table.jpg",
    "hidden/demo.jpg": "codes-hidden.jpg",
    "zones/demo.jpg": "codes-zones.jpg",
    "upper/demo.jpg": "codes-ignored.jpg",
    "tracked/belt.mp4": "codes-tracks.jpg",
}
"""What the recipes write, and its copy on the page, which may be smaller; a frame of the video."""

TRACKS_FRAME = 41
"""The number from 1 of that frame."""


def scripts_with(words, text=PAGE, language="sh"):
    """The scripts of the page that have these words in them."""
    return [script for script in blocks(text, language) if words in script]


SHOWN = [script for script in scripts_with("--save ") if "--gif" not in script]
"""The commands whose images are on the page; that of a GIF has a test of its own."""


def sheet_of_nine():
    """The demonstration image, it at half its size, and this nine times."""
    demo = cv2.imread(str(ROOT / "models/codes/demo.jpg"))
    half = cv2.resize(demo, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    return demo, half, np.tile(half, (3, 3, 1))


def saves_to(script):
    """The folder of the images that a script writes."""
    return re.search(r"--save (\w+)", script)[1]


@pytest.fixture
def drawings(workplace):
    """A folder with what the recipes begin with: the demonstration, scripts that draw, a sheet."""
    for folder in ("models/codes", "docs/images"):
        (workplace / folder).mkdir(parents=True)
    shutil.copy(ROOT / "models/codes/demo.jpg", "models/codes")
    for name in ("belt", "codes"):
        shutil.copy(ROOT / f"docs/images/draw_{name}.py", "docs/images")
    shutil.copy(ROOT / "detcli/pictures/street.jpg", "detcli/pictures")
    cv2.imwrite("sheet.jpg", sheet_of_nine()[2])
    return workplace


def read_written(path):
    """An image, or the frame of a video that the page shows."""
    if path.suffix != ".mp4":
        return cv2.imread(str(path))
    video = cv2.VideoCapture(str(path))
    for _ in range(TRACKS_FRAME):
        _, frame = video.read()
    return frame


@pytest.mark.parametrize("script", thin("recipes that write images", SHOWN, count=2), ids=saves_to)
def test_the_page_of_recipes_shows_what_its_commands_write(script, drawings):
    if "--track " in script:
        optional.require("trackers")
    text = works(script).stdout
    if "--format table" in script:
        (table,) = blocks(PAGE, "text")
        assert table.split() == text.split()
    names = [name for name in IMAGES if name.startswith(f"{saves_to(script)}/")]
    assert names
    for name in names:
        copy = ROOT / "docs/images" / IMAGES[name]
        theirs = cv2.imread(str(copy))
        size = theirs.shape[1::-1]
        ours = cv2.resize(read_written(drawings / name), size, interpolation=cv2.INTER_AREA)
        limit = 8 if name.endswith(".mp4") else 5  # labels may differ
        assert np.abs(ours.astype(int) - theirs).mean() < limit


def test_the_page_shows_each_image_that_is_compared():
    linked = set(re.findall(r"\(images/([\w-]+\.jpg)\)", PAGE))
    assert linked >= set(IMAGES.values())
    folders = set()
    for name in IMAGES:
        folder, _, _ = name.partition("/")
        folders.add(folder)
    assert {saves_to(script) for script in SHOWN} == folders


COUNTED = scripts_with("detcli sort")[0]
"""The commands that count and sort images."""


COMPARED = scripts_with("detcli eval old.onnx")[0]
"""The commands that compare two models."""


CLASSIFIED = scripts_with("--classified")[0]
"""The commands that let a second network name the boxes."""


LOOP = scripts_with("--gif")[0]
"""The command that writes a GIF."""


def test_each_script_of_the_page_is_run_by_a_test():
    tested_apart = [
        blocks(OTHER, "sh")[0],
        recipe("excel.csv"),
        recipe("local-files"),
        recipe("cvat/"),
    ]
    tested_apart += [COUNTED, COMPARED, CLASSIFIED, LOOP]
    assert sorted(SHOWN + MONTH + tested_apart) == sorted(blocks(PAGE, "sh"))


def test_a_new_model_is_compared_with_the_old_one(workplace):
    """Both are the same file, so the check before a release passes; it fails for another limit."""
    skip_without_jq(COMPARED)
    (workplace / "pics/torn.jpg").unlink()
    works("detcli predict pics --conf 0.6 -q --save-dataset data && mv data/* .")
    (workplace / "data.yaml").write_text((workplace / "data.yaml").read_text() + "test: images\n")
    for name in ("old.onnx", "new.onnx"):
        works(f'cp "$(detcli models path yolov10n)" {name}')
    printed = works(COMPARED).stdout
    assert '"difference": 0.0' in printed
    assert printed.endswith("true\n")
    assert (workplace / "page/index.html").is_file()
    check = COMPARED.splitlines()[-1]
    stricter = check.replace("> -0.005", "> 0.005")
    assert stricter != check
    assert shell(stricter).returncode == 1


def test_images_are_counted_sorted_and_taken_back(workplace):
    """The table, the CSV and the lists say the same, and nothing is left of the links."""
    commands, undo, _ = COUNTED.rpartition("detcli sort -o sorted --undo")
    table = works(commands).stdout.splitlines()
    assert table[0].split() == ["class", "images", "boxes", "failed"]
    records = lines((workplace / "card.jsonl").read_text())
    failed = column_of(records_with(records, "error"), "source")
    assert table[-1].endswith(f", {len(failed)} failed")
    folders = []
    for path in (workplace / "sorted").iterdir():
        if path.is_dir():
            folders.append(path.name)
    assert sorted(folders) == ["car", "failed", "person"]
    assert (workplace / "sorted/person/pics/person.jpg").samefile("pics/person.jpg")
    assert (workplace / "lists/failed.txt").read_text().splitlines() == failed
    assert "detcli predict --files-from lists/person.txt" in PAGE
    assert works("detcli predict --files-from lists/person.txt").stdout
    rows = list(csv.DictReader((workplace / "counts.csv").read_text().splitlines()))
    assert set(column_of(rows, "folder")) == {"pics"}
    assert set(column_of(rows, "day")) == {"unknown"}
    boxes = sum(detection_counts(records_with(records, "detections")))
    assert sum(int(row["boxes"]) for row in rows) == boxes
    works(undo)
    assert names_in(workplace / "sorted") == []
    assert (workplace / "pics/person.jpg").exists()


MONTH = blocks(section(PAGE, "One month of a camera project"), "sh")
"""The commands before somebody looks at images, and those after that."""


@pytest.fixture
def memory_card(workplace):
    """A folder of 600 images, and which of them show an animal; one is torn."""
    names = {0: "animal", 1: "person", 2: "vehicle"}
    model = colour_model.build(metadata={"names": str(names)})
    (workplace / "megadetector.onnx").write_bytes(model.SerializeToString())
    chance = random.Random(3)  # noqa: S311
    animals = {}
    for number in range(600):
        name = f"card/site{number % 4}/{number:04}.png"
        (workplace / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = image(grey=0)
        pixels[:8, :8] = chance.choice([0, 0, 1, 2, 3])
        animals[name] = chance.random() < 0.3
        if animals[name]:
            pixels[8:16, 8:16, 2] = chance.randrange(100, 256)  # red is the class 0
        cv2.imwrite(str(workplace / name), pixels)
    (workplace / "card/site0/torn.png").write_bytes(b"torn")
    return animals


def test_a_month_goes_from_the_card_to_the_spreadsheet(memory_card):
    """Somebody answers what the page asks in the first round, and nothing is missed."""
    before, after = MONTH
    assert "first round" in works(before).stderr
    labels = Path("labels-anna.jsonl")
    answer(Path("review"), memory_card).rename(labels)
    printed = works(after).stdout
    assert printed.startswith("--conf ")
    assert "of animal images are lost" in printed
    eyes = set(Path("month/eyes.txt").read_text().splitlines())
    no_eyes = set(Path("month/no-eyes.txt").read_text().splitlines())
    assert eyes | no_eyes == set(memory_card) | {"card/site0/torn.png"}
    assert "card/site0/torn.png" in eyes
    assert len(no_eyes) > 100
    lost = 0
    for name in no_eyes:
        if memory_card[name]:
            lost += 1
    assert lost <= 0.1 * sum(memory_card.values())
    rows = list(csv.DictReader(Path("month.csv").read_text().splitlines()))
    animal_rows = []
    image_count = 0
    for row in rows:
        if row["class"] == "animal":
            animal_rows.append(row)
            image_count += int(row["images"])
    folders = {"card/site0", "card/site1", "card/site2", "card/site3"}
    assert set(column_of(animal_rows, "folder")) == folders
    assert image_count == sum(memory_card.values()) - lost
    assert len(list(Path("sorted/animal").rglob("*.png"))) == image_count


def test_a_second_network_names_every_box(workplace):
    table = works(CLASSIFIED).stdout.splitlines()
    assert table[0].split()[:4] == ["class", "classified", "images", "boxes"]
    records = lines((workplace / "species.jsonl").read_text())
    names = []
    for record in records:
        for detection in record.get("detections", []):
            names.append(detection["classified"])
            assert 0 <= detection["classified_score"] <= 1
    assert len(names) > 1
    assert set(names) <= {"bright", "dark"}
    rows = list(csv.DictReader((workplace / "species.csv").read_text().splitlines()))
    assert sorted(column_of(rows, "class")) == sorted(names)


FACES = ("centerface", "retinaface-mnet25", "scrfd-500m", "ultraface-rfb-320", "yunet-n-320")


def test_a_short_loop_to_share(workplace):
    video = number_video.open_writer("street.mp4", (64, 64), rate=2)
    for number in range(38):
        video.write(image(("red", number % 8, 3)))
    video.release()
    works(LOOP)
    with PillowImage.open(workplace / "out/street.gif") as loop:
        durations_ms = [shown.info["duration"] for shown in ImageSequence.Iterator(loop)]
    assert sum(durations_ms) == 6000
    assert column_of(lines((workplace / "boxes.jsonl").read_text()), "time_s")[0] == 12


def test_faces_are_hidden_in_a_folder_and_in_a_video(workplace, shared):
    """All that the authors' own code of any of five detectors finds."""
    shutil.copy(shared("real/yunet-n-320.onnx"), "yunet.onnx")
    references = []
    for detector in FACES:
        description = json.loads(shared(f"real/{detector}.json").read_bytes())
        references.append(description["reference"]["pictures"])
    (workplace / "photos").mkdir()
    for name in references[0]:
        shutil.copy(shared(f"real/pictures/{name}"), "photos")
    image = cv2.imread("photos/zidane.jpg")
    video = number_video.open_writer("party.mp4", image.shape[1::-1])
    for _ in range(3):
        video.write(image)
    video.release()
    (script,) = scripts_with("--blur face", language="bash")
    works(script)
    works(re.sub("--blur face --blur-margin [0-9.]+ ", "", script).replace("out/", "plain/"))
    pairs = []
    blurred_clip = cv2.VideoCapture("out/party.mp4")
    plain_clip = cv2.VideoCapture("plain/party.mp4")
    for _ in range(3):
        pairs.append(("zidane.jpg", blurred_clip.read()[1], plain_clip.read()[1]))
    assert not blurred_clip.read()[0]
    assert not plain_clip.read()[0]
    for path in (workplace / "photos").iterdir():
        blurred = cv2.imread(f"out/{path.name}")
        plain = cv2.imread(f"plain/{path.name}")
        pairs.append((path.name, blurred, plain))

    face_count = 0
    for name, blurred, plain in pairs:
        for images in references:
            for face in images[name]["detections"]:
                assert is_hidden(blurred, plain, face["box"])
                face_count += 1
    assert face_count > 5 * (3 * 2 + 75)


def is_hidden(image, plain, box):
    """Whether the middle of a box is another than without `--blur`, under the same outlines."""
    left, top, right, bottom = map(round, box)
    across, down = (right - left) // 4, (bottom - top) // 4
    middle = np.s_[top + down : bottom - down, left + across : right - across]
    return np.abs(image[middle].astype(int) - plain[middle]).mean() > 10


def test_the_page_counts_what_tiles_find():
    """Against what the model finds in the image at its own size, nine times at half of it."""
    demo, half, sheet = sheet_of_nine()
    _, jpeg = cv2.imencode(".jpg", sheet)
    sheet = cv2.imdecode(jpeg, cv2.IMREAD_COLOR)
    with Detector("codes", "cpu") as detector:
        on_demo = detector(demo)
    height, width = half.shape[:2]
    boxes_of_copies = []
    for row in range(3):
        for column in range(3):
            shift = np.tile([column * width, row * height], 2)
            boxes_of_copies.append(on_demo.xyxy / 2 + shift)
    truth = np.concatenate(boxes_of_copies)  # (63, 4)
    labels = np.tile(on_demo.class_id, 9)
    counts = []
    for tile in (Tiling(max(sheet.shape)), Tiling(640), None):
        with Detector("codes", "cpu", settings=Settings(tile=tile)) as detector:
            on_sheet = detector(sheet)
        ious = overlap(on_sheet.xyxy[:, None], truth)  # (D, 63)
        matched = ious * (on_sheet.class_id[:, None] == labels) > 0.5
        counts.append((int(matched.any(axis=0).sum()), len(on_sheet)))
    (untiled, _), (tiled, boxes), (recommended, alone) = counts
    assert len(truth) == 63
    sentence = f"With tiles, {tiled} of the 63 symbols are found; looked at whole only, {untiled}."
    assert sentence in PAGE
    assert boxes - tiled == 3
    assert "Three boxes are wrong" in PAGE
    assert f"without `--tile`, {recommended} are found, and nothing else" in PAGE
    assert recommended == alone


OTHER = PAGE.partition("## In other programs")[2]


@pytest.fixture
def results_of_recipes(workplace):
    """A folder with what the page writes for other programs."""
    script = blocks(OTHER, "sh")[0]
    skip_without_jq(script)
    works(script)
    (workplace / "coco").mkdir()
    images = [{"id": 1, "width": 640, "height": 640}, {"id": 2, "width": 640, "height": 640}]
    person = {"id": 1, "image_id": 2, "category_id": 0, "iscrowd": 0, "area": 64}
    truth = {
        "images": images,
        "categories": [{"id": 0, "name": "0"}, {"id": 1, "name": "1"}, {"id": 2, "name": "2"}],
        "annotations": [person | {"bbox": [16, 24, 8, 8]}],
    }
    (workplace / "coco/instances.json").write_text(json.dumps(truth))
    return workplace


@only_whole
@pytest.mark.usefixtures("results_of_recipes")
def test_other_programs_read_what_is_written():
    """DuckDB, pandas, supervision and hotcoco, in one process."""
    for module in ("duckdb", "pandas", "supervision"):
        optional.require(module)
    process = run([sys.executable, "-c", "print('---')\n".join(blocks(OTHER, "python"))])
    assert process.returncode == 0, process.stderr
    by_duckdb, by_pandas, _, by_hotcoco = process.stdout.split("---\n")
    assert "person" in by_duckdb
    assert "person" in by_pandas
    assert "Average Precision" in by_hotcoco
    assert np.any(cv2.imread("annotated.jpg") != cv2.imread("street.jpg"))


def recipe(word):
    """The command of the page that has this word in it."""
    (script,) = scripts_with(word, OTHER)
    return script


def test_local_files_of_label_studio_have_addresses_that_lead_to_them(workplace):
    """As a server reads the query: a plus is a space, and what follows & and # something else."""
    script = recipe("local-files")
    skip_without_jq(script)
    names = ["=1+1.jpg", "%41.jpg", "50% off+a b#1?x=1&y.jpg", "caf\u00e9.jpg"]
    for name in names:
        shutil.copy("pics/car.jpg", workplace / "pics" / name)
    (workplace / "pics/torn.jpg").unlink()
    works("detcli predict pics -q -o tasks.json --format labelstudio")
    works(script)
    tasks = json.loads((workplace / "imported.json").read_text())
    paths = []
    for task in tasks:
        address = urlsplit(task["data"]["image"])
        assert address.path == "/data/local-files/"
        assert address.fragment == ""
        query = parse_qs(address.query, strict_parsing=True)
        assert query.keys() == {"d"}
        paths += query["d"]
    assert sorted(paths) == sorted(str(path) for path in Path("pics").iterdir())


def test_the_csv_file_for_excel_has_a_byte_order_mark_and_the_same_rows(workplace):
    shutil.copy("pics/car.jpg", workplace / "pics" / "caf\u00e9.jpg")
    works("detcli predict pics -q -o boxes.csv || [ $? -eq 3 ]")
    works(recipe("excel.csv"))
    content = (workplace / "excel.csv").read_bytes()
    assert content.startswith(codecs.BOM_UTF8)
    assert content.removeprefix(codecs.BOM_UTF8) == (workplace / "boxes.csv").read_bytes()
    assert "caf\u00e9" in content.decode("utf-8-sig")


def test_the_zip_for_cvat_has_a_folder_for_its_part(results_of_recipes):
    for _ in range(2):  # it can be made again
        works(recipe("cvat/"))
    with zipfile.ZipFile(results_of_recipes / "dataset.zip") as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        description = yaml.safe_load(archive.read("data.yaml"))
    assert names == {
        "data.yaml",
        "images/train/car.jpg",
        "images/train/person.jpg",
        "labels/train/car.txt",
        "labels/train/person.txt",
    }
    assert description == {"train": "images/train", "names": {0: "person", 1: "bus", 2: "car"}}


@pytest.fixture
def readers(monkeypatch):
    """Make importable what `make readers` has installed."""
    folder = ROOT / ".readers"
    if not folder.exists() and not os.environ.get("CI"):
        pytest.skip("make readers was not run")
    monkeypatch.syspath_prepend(folder)


@pytest.mark.usefixtures("readers")
def test_the_validator_of_megadetector_accepts_the_results(results_of_recipes):
    optional.require("supervision")  # which installs Pillow, requests and tqdm
    from megadetector.postprocessing import validate_batch_results as validator

    options = validator.ValidateBatchResultsOptions()
    options.check_image_existence = True
    options.relative_path_base = str(results_of_recipes / "pics")
    report = validator.validate_batch_results(str(results_of_recipes / "timelapse.json"), options)
    assert report["validation_results"]["errors"] == []
    assert report["validation_results"]["warnings"] == []
    assert sum(report["validation_results"]["detection_category_id_to_count"].values()) > 0


@pytest.mark.usefixtures("readers")
def test_label_studio_takes_the_tasks(results_of_recipes):
    from label_studio_sdk.label_interface import LabelInterface

    tags = '<Label value="person"/><Label value="bus"/><Label value="car"/>'
    interface = LabelInterface(
        '<View><Image name="image" value="$image"/>'
        f'<RectangleLabels name="label" toName="image">{tags}</RectangleLabels></View>'
    )
    tasks = json.loads((results_of_recipes / "tasks.json").read_text())
    assert [task["data"]["image"] for task in tasks] == ["pics/car.jpg", "pics/person.jpg"]
    values = []
    for task in tasks:
        for prediction in task["predictions"]:
            assert interface.validate_prediction(prediction, return_errors=True) == []
            values += column_of(prediction["result"], "value")
    assert ["person"] in column_of(values, "rectanglelabels")
    assert (2.5, 1.25) in [(value["x"], value["width"]) for value in values]  # 16 to 24 of 640


def test_supervision_reads_the_dataset(results_of_recipes):
    supervision = optional.require("supervision")
    folder = results_of_recipes / "dataset"
    dataset = supervision.DetectionDataset.from_yolo(
        str(folder / "images"), str(folder / "labels"), str(folder / "data.yaml")
    )
    boxes = []
    for _, _, rows in dataset:
        for row in rows:
            left, top, right, bottom = row[0]
            boxes.append((dataset.classes[row[3]], left, top, right, bottom))
    assert ("person", 16, 24, 24, 32) in boxes
