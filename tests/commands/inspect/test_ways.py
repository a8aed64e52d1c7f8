"""Which ways of reading a model are tried."""

import pytest

from detcli.commands.inspect.ways import OWN, ROUNDS, TRIABLE, VALUES, Way, open_parts, parse_parts
from detcli.commands.inspect.ways import said as say
from detcli.commands.inspect.ways import ways as list_ways
from detcli.errors import UsageError
from detcli.model.contract import BoxFormat, Preprocessing, Resize
from detcli.model.preprocessing import change
from detcli.model.settle import FAMILY

BASE = Way(Preprocessing(), BoxFormat.XYXY, {})


def test_rounds_hold_each_part_once():
    assert sorted(part for members in ROUNDS for part in members) == sorted(TRIABLE)


@pytest.mark.parametrize("part", TRIABLE)
def test_all_ways_of_a_part_are_different_and_the_base_is_the_first(part):
    ways = list_ways(BASE, [part])
    assert ways[0] == Way(BASE.preprocessing, BASE.box_format, ways[0].names)
    assert len({(way.preprocessing, way.box_format) for way in ways}) == len(ways) > 1
    assert len({way.names[part] for way in ways}) == len(ways)


def test_parts_are_combined():
    ways = list_ways(BASE, ["values", "channels", "boxes"])
    assert len(ways) == len(VALUES) * 2 * 2
    assert len({(way.preprocessing, way.box_format) for way in ways}) == len(ways)


def test_mean_and_std_belong_to_colours_not_to_places():
    ways = list_ways(BASE, ["values", "channels"])
    imagenet = {
        way.names["channels"]: way.preprocessing
        for way in ways
        if way.names["values"] == "ImageNet's mean and std"
    }
    assert imagenet["rgb"].mean == (0.485, 0.456, 0.406)
    assert imagenet["bgr"].mean == (0.406, 0.456, 0.485)
    assert imagenet["bgr"].std == (0.225, 0.224, 0.229)
    own = Way(change(Preprocessing(), "bgr,mean=0.1:0.2:0.3,std=0.4:0.5:0.6"), BoxFormat.XYXY, {})
    (bgr, rgb) = list_ways(own, ["channels"])
    assert bgr.preprocessing == own.preprocessing
    assert rgb.preprocessing.mean == (0.3, 0.2, 0.1)
    assert rgb.preprocessing.std == (0.6, 0.5, 0.4)


def test_values_that_are_none_of_the_usual_are_tried_too():
    own = Way(change(Preprocessing(), "mean=0.1:0.2:0.3"), BoxFormat.XYXY, {})
    ways = list_ways(own, ["values"])
    assert ways[0].names == {"values": OWN}
    assert ways[0].preprocessing == own.preprocessing
    assert len(ways) == len(VALUES) + 1


def test_another_way_of_resizing_drops_what_belonged_to_its_own():
    own = Way(change(Preprocessing(), "shortest-edge=800:1333,multiple=32"), BoxFormat.XYXY, {})
    first, *others = list_ways(own, ["resize"])
    assert first.preprocessing == own.preprocessing
    assert [way.preprocessing.resize for way in others] == ["letterbox", "corner", "stretch"]
    assert {(way.preprocessing.edges, way.preprocessing.multiple) for way in others} == {(None, 1)}


@pytest.mark.parametrize("part", ["values", "channels", "resize"])
def test_the_words_of_a_way_say_it(part):
    for way in list_ways(BASE, [part]):
        assert change(Preprocessing(), say(part, way)) == way.preprocessing


def test_what_the_family_assumes_is_open():
    assert open_parts({}) == TRIABLE
    assert open_parts(dict.fromkeys(TRIABLE, FAMILY)) == TRIABLE
    settled = {"values": "preprocessor_config.json", "channels": FAMILY, "boxes": "the graph"}
    assert open_parts(settled) == ("channels", "resize")


def test_the_list_of_parts():
    assert parse_parts("resize, values") == ("values", "resize")
    for text in ("", "values,", "colour", "interpolation"):
        with pytest.raises(UsageError, match="is unknown"):
            parse_parts(text)


def test_padding_stays():
    own = Way(Preprocessing(Resize.LETTERBOX, pad=0, longest=636, enlarge=2), BoxFormat.XYXY, {})
    assert {way.preprocessing.pad for way in list_ways(own, ["values", "channels"])} == {0}
    assert {way.preprocessing.longest for way in list_ways(own, ["channels"])} == {636}
    assert {way.preprocessing.enlarge for way in list_ways(own, ["resize"])} == {2, None}
