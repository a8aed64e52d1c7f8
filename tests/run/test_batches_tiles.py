# mypy: disable-error-code=arg-type
"""A detector that looks at tiles."""

import threading

import pytest
from colour_model import cell_box, picture

from detcli import DeviceOptions, Settings
from detcli.config.values import Tiling
from detcli.core.errors import InferenceError, UsageError
from detcli.data.geometry import Picture
from detcli.run.batches import BatchDetector

TILES = Tiling(64, 0.25)
SQUARES = [("red", 2, 3), ("blue", 6, 6), ("green", 7, 3), ("red", 19, 13)]
LARGE = picture(*SQUARES, size=(112, 160), grey=40)


def opened(model, workers=1, **settings):
    settings = Settings(**{"conf": 0.6, "tile": TILES} | settings)
    return BatchDetector(model, "cpu", settings, DeviceOptions(workers=workers))


def detect(detector, images):
    """What is found in a picture, or in each of a list."""
    if isinstance(images, list):
        return detector.submit([*map(Picture.whole, images)])()
    return detect(detector, [images])[0]


def boxes(found):
    return sorted((name, *box.tolist()) for box, _, _, name in found)


EXPECTED = sorted((name, *cell_box(*at)) for name, *at in SQUARES)


@pytest.mark.parametrize(("workers", "batch"), [(1, 4), (2, 1), (2, None), (5, 4), (5, 1)])
def test_all_objects_are_found_whoever_shares_the_work(make_model, workers, batch):
    with opened(make_model(batch=batch), workers) as detector:
        assert boxes(detect(detector, LARGE)) == EXPECTED
        several = detect(detector, [LARGE, picture(), LARGE[:64, :64], LARGE])
    assert [len(found) for found in several] == [4, 0, 3, 4]
    assert boxes(several[3]) == EXPECTED


def test_the_work_is_shared_and_a_picture_after_the_other_is_read(make_model, monkeypatch):
    threads = set()
    with opened(make_model(), 3) as detector:
        assert detector.workers == 1
        assert detector.batch == 3
        for one in (detector, *detector._helpers):  # noqa: SLF001 - there is no other way to see them

            def start(pictures, begin=one._start):  # noqa: SLF001
                threads.add(threading.current_thread())
                together.wait(20)
                return begin(pictures)

            monkeypatch.setattr(one, "_start", start)
        together = threading.Barrier(
            3, action=lambda: monkeypatch.setattr(together, "wait", lambda _: 0)
        )
        assert boxes(detect(detector, LARGE)) == EXPECTED
        assert len(threads) == 3
        assert detector.finished == len(TILES.areas((112, 160)))
        assert detector.times


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_thread_ends_the_work(make_model, monkeypatch, failing):
    with opened(make_model(), 2) as detector:
        one = [detector, *detector._helpers][failing]  # noqa: SLF001

        def fail(_):
            raise InferenceError("it broke")

        monkeypatch.setattr(one, "_start", fail)
        pictures = [Picture.whole(LARGE)] * 9
        with pytest.raises(InferenceError, match="it broke"):
            detector.submit(pictures)


def test_a_clone_has_helpers_of_its_own(make_model):
    with opened(make_model(), 2) as detector, detector.clone() as other:
        assert not {*map(id, detector._helpers)} & {*map(id, other._helpers)}  # noqa: SLF001
        assert boxes(detect(other, LARGE)) == EXPECTED


def test_max_det_and_confidences_of_classes_are_those_of_a_tile(make_model):
    with opened(make_model(), max_det=1) as detector:
        assert len(detect(detector, LARGE)) > 1
    with opened(make_model(), class_conf=(("red", 1.0),)) as detector:
        assert {name for *_, name in detect(detector, LARGE)} == {"blue", "green"}


def test_pictures_in_tiles_are_decoded_in_full(make_model):
    with opened(make_model()) as detector, opened(make_model(), tile=None) as plain:
        assert plain.fast_for == (64, 64)
        assert detector.fast_for is None


NAMED = {"names": "['red', 'green', 'blue']", "detcli.conf": "0.6"}
CORNER = [("red", column, row) for column in (0, 1) for row in (0, 1)]
MIDDLE = [("green", column + 4, row + 4) for _, column, row in CORNER]
# Red and green are seen in the whole picture at half its size, blue in a tile only.
CROWD = picture(*CORNER, *MIDDLE, ("blue", 13, 6), size=(128, 128))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_crowd_is_looked_at_again_in_tiles(workers, make_model):
    with opened(make_model(metadata=NAMED), workers, tile=None) as detector:
        whole, below = detect(detector, CROWD), detect(detector.with_lower_conf(0.1), CROWD[:32])
        assert len(below) > 2
        assert sorted(name for *_, name in whole) == ["green", "red"]
    with opened(make_model(metadata=NAMED), workers, tile=Tiling(64, 0.25, 3)) as detector:
        assert boxes(detect(detector, CROWD)) == boxes(whole)
        assert detector.fast_for == (64, 64)
    with opened(make_model(metadata=NAMED), workers, tile=Tiling(64, 0.25, 2)) as detector:
        first, small, again = detect(detector, [CROWD, CROWD[:64, :64], CROWD])
        assert (
            boxes(first)
            == boxes(again)
            == sorted((name, *cell_box(*at)) for name, *at in [*CORNER, *MIDDLE, ("blue", 13, 6)])
        )
        assert len(small) == 8  # it fits into a tile
        # What only `reaching` shows makes no crowd.
        assert boxes(detect(detector.with_lower_conf(0.1), CROWD[:32])) == boxes(below)
    with opened(make_model(metadata=NAMED), workers, tile=Tiling(64, 0.1, 2)) as detector:
        assert len(detect(detector, CROWD)) == 9 + 2  # with what is larger than the overlap


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"classes": ("blue",)}, ["blue"]),
        ({"max_det": 1}, None),
        ({"conf": 0.95}, None),
        ({"conf": 0.01}, None),
    ],
)
def test_filters_do_not_change_what_makes_a_crowd(asked, names, make_model):
    with opened(make_model(metadata=NAMED), **{"tile": Tiling(64, 0.25, 2)} | asked) as detector:
        found = detect(detector, CROWD)
        sides = {tuple((box[2:] - box[:2]).tolist()) for box, score, *_ in found if score > 0.6}
        assert sides <= {(8.0, 8.0)}  # of cells in tiles; in the whole they are twice as large
        assert names is None or [name for *_, name in found] == names
    with opened(make_model(metadata=NAMED), **{"tile": Tiling(64, 0.25, 3)} | asked) as detector:
        assert "blue" not in {name for _, score, _, name in detect(detector, CROWD) if score > 0.6}


# Four red objects, and a blue one of lower score. It fits into a tile, so there is nothing to cut.
RED_CROWD = picture(*CORNER, size=(64, 64))
RED_CROWD[40:48, 40:48] = (180, 0, 0)


@pytest.mark.parametrize(
    "asked", [{"classes": ("blue",)}, {"conf": 0.6, "class_conf": (("red", 1.0),)}]
)
def test_a_crowd_leaves_room_for_what_is_asked_for(asked, make_model):
    """The red ones are counted, but do not take the place of the blue one."""
    settings = {"tile": Tiling(64, 0.25, 2), "max_det": 1} | asked
    with opened(make_model(metadata=NAMED), **settings) as detector:
        assert [name for *_, name in detect(detector, RED_CROWD)] == ["blue"]


def test_tiles_are_recommended_by_the_metadata(make_model):
    model = make_model(metadata=NAMED | {"detcli.tile": "64,overlap=0.25,crowd=2"})
    with opened(model, tile=None) as detector:
        assert "blue" in {name for *_, name in detect(detector, CROWD)}
    for other in (Tiling(64, 0.25, 3), "none"):
        with opened(model, tile=other) as detector:
            assert "blue" not in {name for *_, name in detect(detector, CROWD)}


def test_tiles_may_go_with_rect(make_model):
    model = make_model(
        size=None,
        batch=None,
        metadata={"names": str({0: "red", 1: "green", 2: "blue"}), "stride": "8"},
    )
    with opened(model, imgsz=64, rect=True) as detector:
        assert boxes(detect(detector, LARGE)) == EXPECTED


def test_a_tile_smaller_than_the_stride_is_refused(make_model):
    model = make_model(metadata={"stride": "32"})
    with pytest.raises(
        UsageError, match="--tile 31: smaller than the model's stride, 32"
    ) as refused:
        opened(model, tile=Tiling(31))
    assert refused.value.hint == "use the side of its input, 64, or more"
    with opened(model, tile=Tiling(32)):
        pass
