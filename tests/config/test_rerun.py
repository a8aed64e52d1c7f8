"""The command that detects as an earlier run did."""

from detcli.config.config import Config, Runtime, Settings, Watched
from detcli.config.rerun import command_to_rerun


def test_options_of_detections_that_differ_from_their_defaults_are_written():
    config = Config(
        runtime=Runtime(model="my models/a.onnx", batch=4),
        settings=Settings(
            conf=0.3,
            class_conf={"person": 0.5},
            classes=["person", 2],
            nms="none",
            tile="640,overlap=0.3",
            rect=True,
        ),
        watched=Watched(zone=["a=0,0,1,0,1,1", "b=0,0,1,0,1,0.5"]),
    )
    words = command_to_rerun(config)
    assert words[:4] == ["detcli", "predict", "--model", "my models/a.onnx"]
    assert "--rect" in words
    words.remove("--rect")
    pairs = list(zip(words[4::2], words[5::2], strict=True))
    assert ("--conf", "0.3,person=0.5") in pairs
    assert ("--classes", "person,2") in pairs
    assert ("--nms", "none") in pairs
    assert ("--tile", "640,overlap=0.3") in pairs
    assert words.count("--zone") == 2
    assert "--batch" not in words  # it changes no detection


def test_a_run_with_defaults_names_only_its_model():
    assert command_to_rerun(Config(runtime=Runtime(model="a.onnx"))) == [
        "detcli",
        "predict",
        "--model",
        "a.onnx",
    ]


def test_no_command_has_a_password():
    config = Config(runtime=Runtime(model="https://me:secret@example.org/a.onnx"))
    assert command_to_rerun(config) == []
