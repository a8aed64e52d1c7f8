"""Inputs that hang, are damaged, or are not files at all: the others go on."""

import os
import socket
import threading

import cv2
import numpy as np
import pytest
import stream_server
from json_lines import lines

HANGS = "not read and decoded after 1 s"


@pytest.fixture
def folder(tmp_path, make_picture):
    """Two pictures among a pipe, a socket, and links to a pipe and a device."""
    make_picture("in/a.png", ("red", 2, 3))
    make_picture("in/z.png", ("red", 2, 3))
    os.mkfifo(tmp_path / "in" / "f.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "in" / "s.jpg"))
    (tmp_path / "in" / "l.jpg").symlink_to("f.jpg")
    (tmp_path / "in" / "n.jpg").symlink_to("/dev/zero")
    return tmp_path / "in"


@pytest.mark.parametrize("pattern", ["", "*"])
def test_only_files_in_a_folder_are_inputs(invoke, folder, make_model, pattern):
    finished = invoke("predict", folder / pattern, "--model", make_model())
    assert finished.returncode == 0, finished.stderr
    found = [record["source"] for record in lines(finished.stdout)]
    assert found == [str(folder / "a.png"), str(folder / "z.png")]


def test_named_pipes_and_slow_servers_are_given_up(invoke, folder, make_model):
    with stream_server.serve() as server:
        server.files["/slow.png"] = bytes(1000)
        server.drip_s = 0.05
        names = [folder / name for name in ("a.png", "f.jpg", "s.jpg", "n.jpg", "z.png")]
        finished = invoke(
            "predict", *names, server.url("/slow.png"), "--model", make_model(),
            "--input-timeout", "1",
        )  # fmt: skip
    assert finished.returncode == 3
    errors = [record.get("error", {}).get("message", "") for record in lines(finished.stdout)]
    assert [errors[0], errors[1], errors[4], errors[5]] == ["", HANGS, "", HANGS]
    assert errors[2].startswith("cannot be read: ")
    assert "not in a known picture format" in errors[3]


def test_a_video_that_hangs_is_given_up(invoke, folder, make_model):
    os.mkfifo(folder / "v.mp4")
    names = [folder / "v.mp4", folder / "a.png"]
    finished = invoke("predict", *names, "--model", make_model(), "--input-timeout", "1")
    assert finished.returncode == 3
    hanging, sound = lines(finished.stdout)
    assert hanging["error"]["message"] == "no frame can be read after 1 s"
    assert "detections" in sound
    threading.Thread(target=(folder / "v.mp4").write_bytes, args=[b""], daemon=True).start()


@pytest.fixture
def gutted(tmp_path):
    """A JPEG without most of its pixels, but with its end marker."""
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    data = cv2.imencode(".jpg", cv2.resize(noise, (128, 128)))[1].tobytes()
    path = tmp_path / "gutted.jpg"
    path.write_bytes(data[: len(data) * 3 // 10] + b"\xff\xd9")
    return path


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_damage_is_told_with_its_file(invoke, gutted, make_picture, make_model, quiet):
    sound = make_picture("a.png", ("red", 2, 3))
    finished = invoke("predict", sound, gutted, "--model", make_model(), *quiet)
    assert finished.returncode == 0
    text = "damaged: premature end of data segment"
    assert [record.get("warnings") for record in lines(finished.stdout)] == [None, [text]]
    assert (f"detcli: {gutted}: {text}\n" in finished.stderr) == (not quiet)


def test_damage_is_an_error_on_request(invoke, gutted, make_picture, make_model):
    sound = make_picture("a.png", ("red", 2, 3))
    finished = invoke("predict", sound, gutted, "--model", make_model(), "--strict")
    assert finished.returncode == 3
    assert [record.get("error", {}).get("type") for record in lines(finished.stdout)] == [
        None,
        "DecodeError",
    ]
