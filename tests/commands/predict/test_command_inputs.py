"""Inputs that hang, are damaged, or are not files at all: the others go on."""

import os
import socket
import threading

import cv2
import numpy as np
import pytest
import stream_server
from json_lines import column_of, lines, optional_column_of
from PIL import Image

from detcli.data.record import box_of

HANGS = "not read and decoded after 1 s"


@pytest.fixture
def folder_with_pipes(tmp_path, make_image):
    """Two images among a pipe, a socket, and links to a pipe and a device."""
    make_image("in/a.png", ("red", 2, 3))
    make_image("in/z.png", ("red", 2, 3))
    os.mkfifo(tmp_path / "in" / "f.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "in" / "s.jpg"))
    (tmp_path / "in" / "l.jpg").symlink_to("f.jpg")
    (tmp_path / "in" / "n.jpg").symlink_to("/dev/zero")
    return tmp_path / "in"


@pytest.mark.usefixtures("folder_with_pipes")
@pytest.mark.parametrize("source", ["in/", "in/*"])
def test_only_files_in_a_folder_are_inputs(predict, source):
    assert column_of(predict(source).records, "source") == ["in/a.png", "in/z.png"]


@pytest.mark.slow
@pytest.mark.usefixtures("folder_with_pipes")
def test_named_pipes_and_slow_servers_are_given_up(predict):
    with stream_server.serve() as server:
        server.files["/slow.png"] = bytes(1000)
        server.drip_s = 0.05
        names = "in/a.png in/f.jpg in/s.jpg in/n.jpg in/z.png --input-timeout 1"
        completed = predict(names, server.url("/slow.png"), code=3)
    errors = optional_column_of(completed.records, "error", {})
    messages = optional_column_of(errors, "message", "")
    assert messages[0] == ""
    assert messages[1] == HANGS
    assert messages[4] == ""
    assert messages[5] == HANGS
    assert "cannot be read" in messages[2]
    assert "not in a known image format" in messages[3]


@pytest.mark.slow
def test_a_video_that_hangs_is_given_up(predict, folder_with_pipes):
    os.mkfifo(folder_with_pipes / "v.mp4")
    hanging, sound = predict("in/v.mp4 a.png --input-timeout 1", code=3).records
    assert hanging["error"]["message"] == "no frame can be read after 1 s"
    assert "detections" in sound
    threading.Thread(
        target=(folder_with_pipes / "v.mp4").write_bytes, args=[b""], daemon=True
    ).start()


@pytest.fixture
def gutted(tmp_path):
    """A JPEG without most of its pixels, but with its end marker."""
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    data = cv2.imencode(".jpg", cv2.resize(noise, (128, 128)))[1].tobytes()
    (tmp_path / "gutted.jpg").write_bytes(data[: len(data) * 3 // 10] + b"\xff\xd9")


@pytest.mark.usefixtures("gutted")
def test_damage_is_told_with_its_file(predict):
    text = "damaged: premature end of data segment"
    for quiet in ("", "-q"):
        completed = predict(f"a.png gutted.jpg {quiet}")
        assert optional_column_of(completed.records, "warnings") == [None, [text]]
        assert (f"detcli: warning: gutted.jpg: {text}\n" in completed.stderr) == (not quiet)
    completed = predict("a.png gutted.jpg --strict", code=3)
    errors = optional_column_of(completed.records, "error", {})
    assert optional_column_of(errors, "type") == [None, "DecodeError"]


def boxes_by_class(record):
    return {detection["class_name"]: box_of(detection) for detection in record["detections"]}


def test_detections_are_where_viewers_show_them(predict, tmp_path, make_image):
    upright = cv2.imread(make_image("a.png", ("red", 2, 3), ("blue", 5, 1), size=(48, 64)))
    lying = Image.fromarray(np.rot90(upright)[..., ::-1])
    orientation = Image.Exif()
    orientation[0x112] = 6
    lying.save(tmp_path / "a.avif", quality=100, subsampling="4:4:4", exif=orientation)
    for name in ("a.pfm", "a.tiff"):
        cv2.imwrite(tmp_path / name, upright.astype(np.float32) / 255)
    names = "a.png a.avif a.pfm a.tiff"
    records = predict(f"{names} --conf 0.9 --save-dataset all --save shown").records
    assert len(records) == 4
    boxes = boxes_by_class(records[0])
    assert boxes.keys() == {"red", "blue"}
    for record in records[1:]:
        assert boxes_by_class(record) == boxes
    # Trainers read files with OpenCV, so what it does not show like this is encoded again.
    for path in list((tmp_path / "all/images").iterdir()) + list((tmp_path / "shown").glob("a*")):
        assert cv2.imread(path).shape == upright.shape


@pytest.mark.slow
def test_annotated_copies_among_the_inputs_are_no_inputs_of_the_next_run(
    invoke, make_model, make_image
):
    folder = make_image("pics/a.png", ("red", 2, 3)).parent
    for name in ("pics/a.jpg", "pics/a-0123abcd.png", "pics/more/b.png"):
        make_image(name, ("red", 2, 3))
    paths = [
        f"{folder}/a-0123abcd.png",
        f"{folder}/a.jpg",
        f"{folder}/a.png",
        f"{folder}/more/b.png",
    ]

    def run(*words):
        completed = invoke("predict", words, "-m", make_model())
        return column_of(lines(completed.stdout), "source"), completed.stderr

    for _ in range(3):
        sources, warnings = run(folder, "-r", "--save", folder)
        assert "pics has inputs in it" in warnings
        assert sources == paths
        sources, warnings = run(folder, "-r", "--save", folder / "out")
        assert "has inputs" not in warnings
        assert sources == paths
    assert run(folder, "-r")[0] == run(f"{folder}/*.*", folder / "more")[0] == paths
    assert len(list(folder.glob("a*"))) == 3 + 3 * 3
    copy = next(folder.glob("a-*-2.png"))  # which is an input where it is named
    assert run(copy)[0] == [str(copy)]


@pytest.mark.parametrize("output", ["", "-o a.csv", "--save out --format labelstudio"])
def test_quiet_runs_name_inputs_that_cannot_be_read(predict, tmp_path, output):
    (tmp_path / "zero.png").touch()
    completed = predict(f"none.png '' zero.png a.png -q {output}", code=3)
    missing = "detcli: error: {}: no such file; hint: check the path\n"
    empty = "detcli: error: zero.png: empty; hint: fetch or copy the file again\n"
    assert completed.stderr == missing.format("none.png") + missing.format("''") + empty


@pytest.mark.usefixtures("shards_here")
def test_a_folder_as_output_is_told_from_the_folder_of_images(predict, tmp_path):
    (tmp_path / "out").mkdir()
    predict("a.png -o out", code=2, says="annotated images go to a folder with --save out")
    completed = predict("a.png -o parts/")
    assert "annotated images go to a folder with --save\n" in completed.stderr
