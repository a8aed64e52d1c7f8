"""`predict --gpu-decode`: files to records, with the CUDA backend, its decoder and no GPU."""

import cv2
import numpy as np
import pytest
from json_lines import lines
from made_jpegs import encode, exif, insert, orientation, picture
from made_videos import record_film


@pytest.fixture
def predict(invoke, make_model):
    """Run the command: its records, what it says, and its exit code."""
    model = make_model(batch=2)

    def run(*arguments, conf=0.4):
        options = ["--model", model, "--conf", conf, "--format", "jsonl"]
        done = invoke("predict", *arguments, *options)
        return lines(done.stdout), done.stderr, done.returncode

    return run


@pytest.fixture
def folder(tmp_path):
    """JPEGs of several sizes, one of them turned, a PNG and a torn JPEG."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, size in enumerate([(64, 64), (48, 80), (200, 120), (33, 31)]):
        (folder / f"{number}.jpg").write_bytes(encode(picture(*size)))
    turned = insert(encode(picture(40, 70)), exif(orientation(6)))
    (folder / "4.jpg").write_bytes(turned)
    cv2.imwrite(str(folder / "5.png"), picture(64, 48))
    (folder / "6.jpg").write_bytes(encode(picture(64, 48))[:-50])
    return folder


def without(records, *names):
    return [{name: part for name, part in one.items() if name not in names} for one in records]


def test_records_are_those_of_pictures_that_the_cpu_decoded(predict, gpu_decoders, folder):
    found, said, code = predict(folder, "--device", "cuda", "--gpu-decode")
    assert code == 3  # the torn one
    assert "decoded 5 on the GPU, 1 on the CPU" in said
    assert [one.get("decoder") for one in found] == [*["gpu"] * 5, "cpu", None]
    (decoder,) = gpu_decoders
    assert decoder._idle.empty()  # noqa: SLF001 - closed
    expected, said, code = predict(folder, "--device", "cuda")
    assert code == 3
    assert "decoded" not in said
    assert len(gpu_decoders) == 1
    assert sum(len(one.get("detections", ())) for one in expected) > 10
    # The doubles' pixels are OpenCV's, so the rows are the same bit for bit.
    assert without(found, "decoder") == expected


def test_pictures_are_copied_to_the_host_for_those_who_look_at_them(
    predict, gpu_decoders, folder, tmp_path
):
    options = ["--save-crops", tmp_path / "crops", "--save", tmp_path / "saved", "--tile", "64"]
    # Of less certain ones there are thousands in the noise, each a file.
    found, _, _ = predict(folder, "--device", "cuda", "--gpu-decode", *options, conf=0.9)
    assert [one.get("decoder") for one in found] == [*["gpu"] * 5, "cpu", None]
    by_gpu = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*/*.jpg")}
    for path in by_gpu:
        if path.parts[0] != "pictures":
            (tmp_path / path).unlink()
    predict(folder, "--device", "cuda", *options, conf=0.9)
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*/*.jpg")}
    assert len(written) > 100
    assert by_gpu == written
    assert gpu_decoders


def test_hidden_classes_stay_hidden(predict, gpu_decoders, folder, tmp_path):
    options = ["--save", tmp_path / "saved", "--blur", "red", "--blur-with", "fill"]
    found, _, _ = predict(folder / "0.jpg", "--device", "cuda", "--gpu-decode", *options)
    assert found[0]["decoder"] == "gpu"
    by_gpu = cv2.imread(str(tmp_path / "saved" / "0.jpg"))
    predict(folder / "0.jpg", "--device", "cuda", *options)
    np.testing.assert_array_equal(by_gpu, cv2.imread(str(tmp_path / "saved" / "0.jpg")))
    assert gpu_decoders


def test_a_video(predict, gpu_decoders, tmp_path):
    pytest.importorskip("av")
    times = [n / 25 + n % 3 * 0.007 for n in range(30)]
    path = record_film(tmp_path / "film.mp4", times, sound=None, signal_s=0.4)
    found, said, code = predict(path, "--device", "cuda", "--gpu-decode")
    assert code == 0
    assert "decoded 30 on the GPU, 0 on the CPU" in said
    expected, _, _ = predict(path, "--device", "cuda")
    assert [(one["frame"], one["time_s"]) for one in found] == [
        (one["frame"], one["time_s"]) for one in expected
    ]
    counts = [len(one["detections"]) for one in found]
    assert counts == [len(one["detections"]) for one in expected]
    assert len(set(counts)) == 2
    assert gpu_decoders


def test_settings_and_provenance_say_what_decoded(predict, gpu_decoders, folder):
    (record,), _, _ = predict(folder / "0.jpg", "--device", "cuda", "--gpu-decode", "--provenance")
    assert record["settings"]["gpu_decode"] is True
    assert {"nvimgcodec", "pynvvideocodec"} <= record["provenance"].keys()
    (record,), _, _ = predict(folder / "0.jpg", "--device", "cuda", "--provenance")
    assert record["settings"]["gpu_decode"] is False
    assert record["provenance"]["nvimgcodec"] is None
    assert len(gpu_decoders) == 1


def test_a_journal_does_not_go_on_with_another_decoder(predict, gpu_decoders, folder, tmp_path):
    journal = tmp_path / "journal.jsonl"
    predict(folder / "0.jpg", "--device", "cuda", "--resume", journal)
    _, said, code = predict(folder, "--device", "cuda", "--resume", journal, "--gpu-decode")
    assert code == 2
    assert "gpu_decode" in said
    assert gpu_decoders


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--strict"], "do not report damage"),
        (["--fast-decode"], "at full size"),
        (["--cuda-graph"], "breaks the capture of a graph"),
        (["rtsp://127.0.0.1/"], "pictures and video files"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options, reason, predict, folder):
    records, said, code = predict(folder, "--device", "cuda", "--gpu-decode", *options)
    assert (records, code) == ([], 2)
    assert "--gpu-decode excludes" in said
    assert reason in said


def test_other_devices_are_refused(predict, folder):
    records, said, code = predict(folder, "--device", "cpu", "--gpu-decode")
    assert (records, code) == ([], 2)
    assert "the network runs on cpu" in said
    assert "--device cuda" in said


def test_several_gpus_are_refused(predict, gpu_decoders, folder):
    records, said, code = predict(folder, "--device", "cuda:0,cuda:1", "--gpu-decode")
    assert (records, code) == ([], 2)
    assert "the memory of one GPU, and there are 2 devices" in said
    assert not gpu_decoders
