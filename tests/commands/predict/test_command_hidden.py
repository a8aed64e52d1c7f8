"""`--blur` hides what the model found wherever records go, and beside whatever is in a folder."""

import io
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from colour_model import image, image_of
from json_lines import column_of
from made_jpegs import encode, insert, segment
from PIL import Image
from thinning import thin

from detcli.sink.image import GREY

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[3] / "models/codes/demo.jpg"
READ = f"{DEMO} -m codes --device cpu --read"


# Texts of runs in shards


@pytest.mark.parametrize(
    "classes",
    thin("classes that are hidden", ["qr_code", "qr_code,barcode,aruco,data_matrix,pdf417"], 1),
)
def test_merged_parts_hide_the_texts_that_one_run_hides(in_shards, classes):
    single_run, merged = in_shards(f"{READ} --blur {classes}")
    assert merged == single_run
    assert "NL|HARBOUR" in single_run or "pdf417" in classes
    assert "https://example.org" not in merged


@pytest.mark.usefixtures("shards_here")
def test_parts_hide_the_texts(predict, tmp_path):
    predict(f"{READ} --blur qr_code -o parts/")
    (part,) = (tmp_path / "parts").glob("part-*.jsonl")
    assert "https://example.org" not in part.read_text()


@pytest.mark.usefixtures("shards_here")
def test_a_run_in_shards_refuses_classes_that_the_model_lacks(predict, tmp_path):
    says = "the model has no class 'qr_cod'"
    predict(f"{READ} --blur qr_cod -o parts/", code=2, says=says)
    says = "--blur qr_code is not among --classes"
    predict(f"{READ} --blur qr_code --classes barcode -o parts/", code=2, says=says)
    assert list((tmp_path / "parts").glob("part-*")) == []


@pytest.mark.usefixtures("shards_here")
def test_runs_that_hide_other_texts_do_not_share_a_folder_or_a_journal(predict):
    predict(f"{READ} -o parts/")
    predict(f"{READ} --blur qr_code -o parts/", code=2, says="blur [] instead of [")
    predict(f"{READ} --resume a.jsonl")
    predict(f"{READ} --blur qr_code --resume a.jsonl", code=2, says="blur [] instead of [")
    predict(f"{READ} --blur qr_code --resume b.jsonl")
    predict(f"{READ} --blur qr_code --resume b.jsonl", says="1 skipped")


# Marks


def drops(record, index):
    """A mark that drops a box of a record."""
    detection = record["detections"][index]
    return {
        "mark": "drop",
        "source": record["source"],
        "class_name": detection["class_name"],
        "box": [detection["x1"], detection["y1"], detection["x2"], detection["y2"]],
        "detection": index,
    }


def is_grey(path, column, row):
    """Whether the middle of a cell is hidden."""
    pixels = cv2.imread(str(path))[8 * row + 2 : 8 * row + 6, 8 * column + 2 : 8 * column + 6]
    return bool((np.abs(pixels.astype(int) - GREY) < 3).all())


@pytest.fixture
def two_reds(tmp_path):
    """An image of two red cells, which are found, and a blue one."""
    cv2.imwrite(str(tmp_path / "two.png"), image(("red", 1, 1), ("red", 5, 5), ("blue", 1, 5)))
    return "two.png"


def test_a_mark_that_drops_a_box_uncovers_nothing(predict, two_reds, tmp_path):
    (record,) = predict(f"{two_reds} --conf 0.9").records
    first_red = column_of(record["detections"], "class_name").index("red")
    (tmp_path / "marks.json").write_text(json.dumps([drops(record, first_red)]))
    outputs = "--save pics --labels none --save-dataset set --save-crops crops"
    blur = "--blur red --blur-with fill --blur-margin 0 --apply marks.json"
    completed = predict(
        f"{two_reds} --conf 0.9 {outputs} {blur}",
        says="1 detection dropped by marks, and blurred in the images all the same",
    )
    remaining = column_of(completed.records[0]["detections"], "class_name")
    assert remaining.count("red") == 1
    for path in (tmp_path / "pics/two.png", tmp_path / "set/images/two.png"):
        assert is_grey(path, 1, 1)
        assert is_grey(path, 5, 5)
        assert not is_grey(path, 1, 5)
    assert len((tmp_path / "set/labels/two.txt").read_text().splitlines()) == 2


def test_marks_that_drop_nothing_hidden_are_not_mentioned(predict, two_reds, tmp_path):
    (record,) = predict(f"{two_reds} --conf 0.9").records
    class_names = column_of(record["detections"], "class_name")
    assert class_names.count("blue") == 1
    blue = class_names.index("blue")
    (tmp_path / "marks.json").write_text(json.dumps([drops(record, blue)]))
    completed = predict(f"{two_reds} --conf 0.9 --save pics --blur red --apply marks.json")
    assert "dropped by marks" not in completed.stderr


def test_a_run_says_where_max_det_may_have_uncovered_something(predict, two_reds):
    says = "1 image with as many detections as --max-det allows: what it left out is not blurred"
    predict(f"{two_reds} --conf 0.9 --max-det 2 --save pics --blur red", says=says)
    completed = predict(f"{two_reds} --conf 0.9 --max-det 4 --save pics --blur red")
    assert "--max-det" not in completed.stderr


# Files that hold more than the image that was looked at

HIDDEN_COLOUR = (255, 0, 0)  # blue, which is in no main image


def second_image():
    return encode(image(("blue", 1, 1), ("blue", 3, 3)))


def with_trailing_image(jpeg):
    return jpeg + second_image()


def with_multi_image(jpeg):
    """As phones write it: Pillow's MPO."""
    first_page = Image.open(io.BytesIO(jpeg)).convert("RGB")
    second_page = Image.open(io.BytesIO(second_image())).convert("RGB")
    file = io.BytesIO()
    first_page.save(file, "MPO", save_all=True, append_images=[second_page])
    return file.getvalue()


def with_thumbnail(jpeg):
    """An APP1 segment whose second directory has a thumbnail."""
    thumbnail = second_image()
    tiff = b"II*\0" + (8).to_bytes(4, "little") + b"\0\0" + (14).to_bytes(4, "little")
    entries = [(0x103, 3, 1, 6), (0x201, 4, 1, 56), (0x202, 4, 1, len(thumbnail))]
    tiff += len(entries).to_bytes(2, "little")
    for tag, kind, number, value in entries:
        tiff += tag.to_bytes(2, "little") + kind.to_bytes(2, "little")
        tiff += number.to_bytes(4, "little") + value.to_bytes(4, "little")
    tiff += bytes(4)
    return insert(jpeg, segment(0xE1, b"Exif\0\0" + tiff.ljust(56, b"\0") + thumbnail))


def with_xmp(jpeg):
    return insert(jpeg, segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta>SECRET"))


def with_motion_video(jpeg):
    return jpeg + b"\0\0\0\x18ftypmp42" + b"SECRET" * 10


CARRIERS = (
    with_trailing_image,
    with_multi_image,
    with_thumbnail,
    with_xmp,
    with_motion_video,
)


@pytest.mark.parametrize("carry", CARRIERS)
@pytest.mark.parametrize("found", [True, False])
def test_a_written_image_is_made_anew_whatever_was_found(predict, tmp_path, carry, found):
    jpeg = encode(image_of([("red", 2, 2)] * found, grey=40))
    data = carry(jpeg)
    assert len(data) > len(jpeg)
    (tmp_path / "photo.jpg").write_bytes(data)
    outputs = "--save pics --save-dataset set --save-crops crops --report page"
    predict(f"photo.jpg --conf 0.5 {outputs} --blur red")
    written = [path for path in tmp_path.rglob("*.jpg") if path != tmp_path / "photo.jpg"]
    assert tmp_path / "set/images/photo.jpg" in written
    for path in written:
        content = path.read_bytes()
        assert content.count(b"\xff\xd8\xff") == 1
        assert b"SECRET" not in content
        assert b"Exif" not in content
        pixels = cv2.imread(str(path)).astype(int)
        assert (np.abs(pixels - HIDDEN_COLOUR).max(axis=2) > 60).all()


@pytest.mark.parametrize("name", ["mpo.jpg", "exif.jpg", "motion.jpg"])
def test_photos_of_phones_are_made_anew(predict, shared, tmp_path, name):
    shutil.copy(shared(f"cases/{name}"), tmp_path / name)
    predict(f"{name} --conf 0.99 --save-dataset set --blur red")
    content = (tmp_path / f"set/images/{name}").read_bytes()
    assert content.count(b"\xff\xd8\xff") == 1
    assert b"ftyp" not in content
    assert b"Exif" not in content


@pytest.mark.parametrize(("suffix", "options"), [
    (".png", {"pnginfo": True}), (".tif", {"pages": True}), (".webp", {"pages": True}),
])  # fmt: skip
def test_other_formats_are_made_anew(predict, tmp_path, suffix, options):
    main = Image.fromarray(image(grey=40))
    second = Image.fromarray(image(("red", 1, 1), grey=40)[..., ::-1])
    path = tmp_path / f"photo{suffix}"
    if options.get("pages"):
        main.save(path, save_all=True, append_images=[second], lossless=True)
    else:
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        info.add_text("Comment", "SECRET")
        main.save(path, pnginfo=info, exif=b"Exif\0\0II*\0SECRET")
    predict(f"{path.name} --conf 0.5 --save-dataset set --blur red")
    (written,) = (tmp_path / "set/images").iterdir()
    with Image.open(written) as opened:
        assert getattr(opened, "n_frames", 1) == 1
    assert b"SECRET" not in written.read_bytes()


# Folders that hold images of other runs

SHARP = "has images of other runs, which may show red: --blur changes none of them"


@pytest.mark.parametrize("option", ["--save", "--save-crops", "--save-dataset"])
def test_a_folder_with_sharp_images_is_warned_of(predict, make_image, option):
    make_image("b.png", ("red", 1, 1))
    predict(f"a.png --conf 0.5 {option} out -q")
    for _ in range(2):  # it stays so
        predict(f"b.png --conf 0.5 {option} out --blur red", says=f"out {SHARP}")


@pytest.mark.parametrize("option", ["--save", "--save-crops", "--save-dataset"])
def test_a_folder_in_which_all_is_hidden_is_not_warned_of(predict, make_image, option):
    make_image("b.png", ("red", 1, 1))
    for name in ("a.png", "b.png", "a.png"):
        completed = predict(f"{name} --conf 0.5 {option} out --blur red,0")
        assert "other runs" not in completed.stderr
    completed = predict(f"a.png --conf 0.5 {option} out --blur blue,red", says="may show red, blue")
    predict(f"b.png --conf 0.5 {option} out", says="")
    predict(f"a.png --conf 0.5 {option} out --blur red", says=SHARP)


def test_images_that_somebody_else_put_there_are_warned_of(predict, make_image):
    make_image("out/deep/holiday.png")
    predict("a.png --conf 0.5 --save out --blur red", says=SHARP)


def test_a_page_that_goes_on_with_sharp_images_is_warned_of(predict, make_image):
    make_image("b.png")
    predict("a.png --conf 0.5 --resume r.jsonl --report page")
    predict("a.png b.png --conf 0.5 --resume r.jsonl --report page --blur red", says=SHARP)
    completed = predict("a.png --conf 0.5 --report page --blur red -o new.jsonl")
    assert "other runs" not in completed.stderr  # the page began anew
