"""`verify --gpu-decode`: how far two decoders, and what is found in their pictures, are apart."""

import json

import cv2
import numpy as np
import pytest
from colour_model import picture
from made_jpegs import encode

from detcli.commands.verify.report import DecodersReport
from detcli.commands.verify.running.compare import DecoderComparison, _paired
from detcli.errors import DecodeError
from detcli.geometry import Decoder, Picture
from detcli.source.item import failed


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "pics"
    folder.mkdir()
    for number in range(3):
        squares = [("red", 1 + number, 1), ("blue", 5, 5)]
        (folder / f"{number}.jpg").write_bytes(encode(picture(*squares), QUALITY=100))
    cv2.imwrite(str(folder / "3.png"), picture(("green", 2, 2)))
    return folder


@pytest.fixture
def verify(invoke, make_model, folder):
    model = make_model(batch=2)

    def run(*options):
        where = ["--images", folder, "--device", "cuda", "--format", "json"]
        done = invoke("verify", model, *where, "--gpu-decode", "--conf", "0.6", *options)
        return done, json.loads(done.stdout) if done.stdout else None

    return run


@pytest.fixture
def darker_pictures(gpu_decoders, monkeypatch):
    """The GPU decodes to levels that are a little lower, once it has shown that it can decode."""
    from detcli.backend import cuda

    open_decoder = cuda.open_decoder

    def opened(device):
        decoder = open_decoder(device)
        decoder._codec.wrong = lambda pixels: pixels - np.minimum(pixels, 3)  # noqa: SLF001
        return decoder

    monkeypatch.setattr(cuda, "open_decoder", opened)
    return gpu_decoders


@pytest.mark.parametrize("name", ["-", "camera:0", "rtsp://127.0.0.1:9/door"])
def test_what_cannot_be_read_twice_is_refused(invoke, make_model, name):
    options = ["--device", "cuda", "--gpu-decode", "--images", name]
    done = invoke("verify", make_model(batch=2), *options)
    assert done.returncode == 2, done.stderr
    assert "reads each input twice" in done.stderr


def test_a_frame_that_only_one_decoder_has_fails_and_the_next_inputs_are_compared():
    def items(*places):
        return [failed(source, DecodeError("torn"), frame) for source, frame in places]

    by_gpu = items(("a.mp4", 0), ("b.jpg", None), ("c.mp4", 0), ("c.mp4", 1))
    by_cpu = items(("a.mp4", 0), ("a.mp4", 1), ("b.jpg", None), ("c.mp4", 0))
    pairs = list(_paired(by_gpu, by_cpu))
    places = [("a.mp4", 0), ("a.mp4", 1), ("b.jpg", None), ("c.mp4", 0), ("c.mp4", 1)]
    for side in (0, 1):
        origins = [pair[side].origin for pair in pairs]
        assert [(origin.source, origin.frame) for origin in origins] == places
    for lacking in (pairs[1][0], pairs[4][1]):
        with pytest.raises(DecodeError, match="only one of the two decoders"):
            lacking.load()
    assert [pairs[i][0] for i in (0, 2, 3, 4)] == by_gpu


def test_equal_decoders_agree(verify, gpu_decoders):
    done, report = verify()
    assert done.returncode == 0, done.stderr
    assert report["decoders"] == {
        "gpu": 3, "cpu": 1, "mean_difference": 0.0, "max_difference": 0
    }  # fmt: skip
    assert report["compared"] == 4
    assert report["detections"]["pairs"] == 7
    assert len(gpu_decoders) == 1


def test_other_pixels_are_told_by_how_much(verify, darker_pictures):
    done, report = verify()
    assert done.returncode == 6
    assert "the two sides do not agree" in done.stderr
    assert report["decoders"]["max_difference"] == 3
    assert 0 < report["decoders"]["mean_difference"] <= 3
    assert 0 < report["detections"]["largest_score_difference"] <= 3 / 255 + 1e-6
    assert verify("--tolerance", "score=0.02")[0].returncode == 0
    assert len(darker_pictures) == 2


def test_the_table_names_the_decoders(invoke, make_model, folder, darker_pictures):
    where = ["--images", folder, "--device", "cuda", "--gpu-decode", "--format", "table"]
    said = invoke("verify", make_model(batch=2), *where, "--conf", "0.6").stdout
    assert "3 pictures on the GPU for the left, 1 left to the CPU" in " ".join(said.split())
    assert "3 at most" in " ".join(said.split())
    assert darker_pictures


def test_a_gpu_that_decodes_nothing_shows_nothing(verify, gpu_decoders, folder):
    for path in folder.glob("*.jpg"):
        path.unlink()
    done, report = verify()
    assert done.returncode == 6
    assert report["decoders"]["mean_difference"] is None
    assert "the GPU decoded none of the pictures" in done.stderr
    assert gpu_decoders


def test_a_certificate_says_which_side_the_gpu_decoded(
    verify, invoke, gpu_decoders, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done, _ = verify("--certificate", tmp_path / "c.json")
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "c.json").read_text())
    assert [content[side]["settings"]["gpu_decode"] for side in ("left", "right")] == [True, False]
    assert content["request"]["gpu_decode"] is True
    assert invoke("verify", "--check", tmp_path / "c.json").returncode == 0
    assert len(gpu_decoders) == 2


@pytest.mark.parametrize("option", [["--tensors"], ["--bisect"]])
def test_tensors_have_one_input(option, verify):
    done, _ = verify(*option)
    assert done.returncode == 2
    assert "pictures that two decoders made" in done.stderr


def test_the_cpu_decodes_nothing_on_a_gpu(invoke, make_model, folder):
    done = invoke("verify", make_model(), "--images", folder, "--gpu-decode")
    assert done.returncode == 2
    assert "--gpu-decode needs one of NVIDIA's GPUs" in done.stderr


def test_the_figures_are_of_what_the_gpu_decoded():
    compared = DecoderComparison()
    assert compared.report() == DecodersReport(0, 0, None, None)
    black, grey = (np.full((2, 3, 3), level, np.uint8) for level in (0, 90))
    compared.add(Picture.whole(black, Decoder.CPU), Picture.whole(grey))
    assert compared.report() == DecodersReport(0, 1, None, None)
    compared.add(Picture.whole(black, Decoder.GPU), Picture.whole(black))
    compared.add(Picture.whole(grey, Decoder.GPU), Picture.whole(black))
    assert compared.report() == DecodersReport(2, 1, 45.0, 90)
