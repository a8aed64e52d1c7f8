"""Conversions from file to file: what is written, and when nothing is."""

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import colour_model
import convolution_model
import onnx
import pytest
from conversions import IMAGE, ITEM, converted
from folders import names_in
from small_disk import small_disk
from warned import messages_of

from detcli.commands.convert import run as module
from detcli.commands.convert.run import load_images
from detcli.core.errors import DecodeError, DetcliWarning, OutputError, SourceError, UsageError
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.source.loading import Item, failed_item, load_in_time


@pytest.fixture
def model_path(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(convolution_model.build("ultralytics").SerializeToString())
    return path


CUT = {"cut": True}


def listing(folder):
    return names_in(Path(folder))


def test_the_report_describes_the_files(model_path, tmp_path):
    output = tmp_path / "body.onnx"
    report = converted(model_path, output, **CUT)
    assert report.written
    assert report.failures == ()
    for file, path in ((report.model, model_path), (report.output, output)):
        content = path.read_bytes()
        assert file.path == str(path)
        assert file.bytes == len(content)
        assert file.sha256 == hashlib.sha256(content).hexdigest()
        assert file.size == (64, 64)
        assert file.batch == 1
    (step,) = report.steps
    assert step.name == "cut"
    onnx.checker.check_model(onnx.load(output), full_check=True)
    assert listing(tmp_path) == ["body.onnx", "model.onnx"]


def test_above_the_tolerance_nothing_is_written(model_path, tmp_path):
    output = tmp_path / "half.onnx"
    strict = {"half": True, "tolerance": {"score": 0.0}}
    report = converted(model_path, output, **strict)
    assert not report.written
    assert "further apart" in report.failures[0]
    assert report.difference.over > 0
    assert listing(tmp_path) == ["model.onnx"]
    output.write_bytes(b"before")
    converted(model_path, output, **strict, force=True)
    assert output.read_bytes() == b"before"
    converted(model_path, output, half=True, force=True)
    assert output.read_bytes() != b"before"


def test_an_existing_file_is_kept_without_force(model_path, tmp_path):
    existing, link = tmp_path / "there.onnx", tmp_path / "link.onnx"
    existing.write_bytes(b"before")
    link.symlink_to(model_path)
    for path, why in (
        (existing, "already exists"),
        (model_path, "is the model itself"),
        (link, "is the model itself"),
    ):
        with pytest.raises(UsageError, match=why) as caught:
            converted(model_path, path, **CUT)
        assert "--force" in caught.value.hint
    assert existing.read_bytes() == b"before"
    report = converted(model_path, model_path, **CUT, force=True)
    assert hashlib.sha256(model_path.read_bytes()).hexdigest() == report.output.sha256
    assert report.model.sha256 != report.output.sha256


@pytest.mark.parametrize("name", ["", "missing/body.onnx"])
def test_an_output_that_cannot_be_written_is_reported_before_the_work(
    model_path, tmp_path, name, monkeypatch
):
    monkeypatch.setattr(module, "ModelFile", None)
    with pytest.raises((UsageError, OutputError)):
        converted(model_path, tmp_path / name, **CUT)


def test_external_data_moves_into_the_file(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(
        convolution_model.build(), path, save_as_external_data=True, location="w", size_threshold=0
    )
    report = converted(path, tmp_path / "out.onnx", metadata={"author": "me"})
    assert report.model.bytes == path.stat().st_size + (tmp_path / "w").stat().st_size
    loaded = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    for tensor in loaded.graph.initializer:
        assert not tensor.external_data


def test_a_full_disk_leaves_nothing_behind(model_path, tmp_path):
    with small_disk(), pytest.raises(OutputError, match="cannot write"):
        converted(model_path, tmp_path / "out.onnx", **CUT)
    assert listing(tmp_path) == ["model.onnx"]


def test_a_warning_where_nothing_was_found(tmp_path):
    """Two models that find nothing always agree."""
    path = tmp_path / "model.onnx"
    path.write_bytes(colour_model.build().SerializeToString())
    black = Image.whole(IMAGE.pixels * 0)
    item = Item(Origin("b.png"), lambda: black)
    with pytest.warns(DetcliWarning, match="0 boxes above 0 .* weak evidence: use --image"):
        report = converted(path, tmp_path / "out.onnx", item=item, batch=2)
    assert report.written


def test_each_warning_about_a_model_comes_once(model_path, tmp_path):
    with pytest.warns(DetcliWarning, match=r"out.onnx: the metadata names 1 class"):
        converted(model_path, tmp_path / "out.onnx", metadata={"names": "['a']"})
    old = colour_model.build(metadata={"names": "['a', 'b']"})
    model_path.write_bytes(old.SerializeToString())
    with pytest.warns(DetcliWarning) as caught:
        converted(model_path, tmp_path / "out.onnx", batch=2, force=True)
    messages = messages_of(caught)
    assert messages == ["model.onnx: the metadata names 2 classes, the graph has 3"]


def test_images_that_are_damaged_or_cannot_be_read_are_told(monkeypatch):
    advanced = []
    damaged = replace(IMAGE, warnings=("damaged",))
    items = [failed_item("torn.jpg", DecodeError("torn")), Item(Origin("bad.jpg"), lambda: damaged)]
    with pytest.warns(DetcliWarning) as caught:
        images = list(load_images(items, lambda: advanced.append(1)))
    assert messages_of(caught) == ["torn.jpg: torn", "bad.jpg: damaged"]
    assert images == [damaged]
    assert len(advanced) == 2
    monkeypatch.setattr(module, "MAX_IMAGES", 2)
    assert len(list(load_images(iter(lambda: ITEM, None), lambda: None))) == 2  # an endless one


def test_an_image_that_never_loads_is_an_error(make_model, tmp_path, monkeypatch):
    release = Event()
    monkeypatch.setattr(module, "load_in_time", partial(load_in_time, limit_s=0.3))
    item = Item(Origin("a.jpg"), lambda: release.wait(60))  # type: ignore[arg-type, return-value]
    with pytest.raises(SourceError, match="not read and decoded"):
        converted(make_model(), tmp_path / "new.onnx", item, cut=True)
    release.set()
