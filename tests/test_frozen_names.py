"""The public names of the library stay: a list of them is compared with what there is."""

import inspect
from dataclasses import fields

import frozen_names
import pytest

import detcli
from detcli.data.geometry import Image
from detcli.data.record import Origin


def test_the_public_names_are_those_of_the_list():
    """After a change on purpose, `python -m tests.frozen_names` writes the list anew."""
    listed_names = frozen_names.LIST.read_text(encoding="utf-8").splitlines()
    assert frozen_names.list_names() == listed_names


@pytest.mark.parametrize(
    "line",
    [
        "detcli.predict(sources, detector, *, inputs=..., watched=...)",
        "detcli.Detector.__call__(self, images, *, conf=None, channels='bgr')",
        "detcli.Detections.sort_by(self, key, *, descending=False)",
        "detcli.Detector.names",
        "detcli.Detections.area: npt.NDArray[np.float32] [property]",
        "detcli.Inputs.vid_stride: int = 1",
        "detcli.DecodeError(message, hint='') of InputError with exit code 3",
        "Image.pixels: Pixels",
    ],
)
def test_the_list_has_methods_attributes_and_defaults(line):
    assert line in frozen_names.list_names()


def test_a_name_that_goes_away_is_noticed(monkeypatch):
    before = frozen_names.list_names()
    monkeypatch.delattr(detcli.Detections, "iou")
    removed = set(before) - set(frozen_names.list_names())
    assert removed == {"detcli.Detections.iou(self, others)"}


def test_a_parameter_that_is_renamed_is_noticed(monkeypatch):
    def sort_by(self, by, *, descending=False):
        """Take the key by another name."""

    before = frozen_names.list_names()
    monkeypatch.setattr(detcli.Detections, "sort_by", sort_by)
    removed = set(before) - set(frozen_names.list_names())
    assert removed == {"detcli.Detections.sort_by(self, key, *, descending=False)"}


@pytest.mark.parametrize(
    "kind",
    [detcli.Inputs, detcli.Watched, detcli.Settings, detcli.DeviceOptions, detcli.Record]
    + [detcli.Detections, Origin, Image],
)
def test_the_docstring_says_what_each_attribute_is(kind):
    documentation = inspect.getdoc(kind)
    for field in fields(kind):
        if not field.name.startswith("_"):
            assert f"    {field.name}: " in documentation


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (detcli.Settings, "confidence"),
        (detcli.Settings, "suppression"),
        (detcli.Inputs, "step"),
        (detcli.Inputs, "end_s"),
        (detcli.Inputs, "source"),
        (detcli.Record, "saved"),
        (detcli.Record, "scene"),
        (detcli.Record, "added"),
        (detcli.Watched, "places"),
        (detcli.DeviceOptions, "check"),
        (detcli.DeviceOptions, "wants_half_file"),
    ],
)
def test_what_serves_the_package_itself_is_hidden(kind, name):
    assert name not in dir(kind)
