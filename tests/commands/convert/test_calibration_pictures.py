"""Pictures as a network's input."""

import colour_model
import numpy as np
import pytest

from detcli.commands.convert import calibration as pictures
from detcli.commands.convert.calibration import built_in, loaded, tensor_of
from detcli.errors import DecodeError, DetcliWarning
from detcli.geometry import Picture
from detcli.model.passes import infer_shapes
from detcli.model.recognise import recognise
from detcli.record import Origin
from detcli.source.item import Item, failed

IMAGE = Picture.whole(colour_model.picture(("red", 0, 0)))


def test_the_built_in_picture_has_a_name_without_a_folder():
    item = built_in()
    assert item.origin.source == "street.jpg"
    assert item.load().size == (640, 960)


def test_what_cannot_be_read_is_told_and_left_out():
    advanced = []
    items = [failed("torn.jpg", DecodeError("torn")), Item(Origin("good.jpg"), lambda: IMAGE)]
    with pytest.warns(DetcliWarning, match=r"torn\.jpg: torn"):
        found = list(loaded(items, lambda: advanced.append(1)))
    assert found == [IMAGE]
    assert len(advanced) == 2


def test_no_more_than_are_useful(monkeypatch):
    monkeypatch.setattr(pictures, "MOST", 2)
    endless = iter(lambda: Item(Origin("again.jpg"), lambda: IMAGE), None)
    assert len(list(loaded(endless, lambda: None))) == 2


@pytest.mark.parametrize(("batch", "places"), [(1, 1), (3, 3), (None, 1)])
def test_a_picture_is_at_each_place_of_a_batch(batch, places):
    model = colour_model.build(batch=batch, dtype=np.float16)
    tensor = tensor_of(IMAGE, recognise(infer_shapes(model), "m"))
    assert tensor.shape == (places, 3, 64, 64)
    assert tensor.dtype == np.float16
    for place in tensor:
        assert place[:, 0, 0].tolist() == [1, 0, 0]
