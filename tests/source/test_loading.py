"""Inputs that hang: each becomes an error after its time, and the others go on."""

import itertools
import threading
import time

import numpy as np
import pytest
from origins import frames_of
from source_items import error_of

from detcli.core.errors import InferenceError, PlaceError, SourceError
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.source import loading as module
from detcli.source.loading import Item, Loaders, SourceProgress, load_in_time, read_in_time

pytestmark = pytest.mark.slow

LIMIT_S = 0.4
IMAGE = Image.whole(np.zeros((2, 2, 3), np.uint8))


@pytest.fixture
def hanging_load():
    """A load that hangs until the end of the test, as native code does."""
    release = threading.Event()
    yield lambda: release.wait(60) and IMAGE
    release.set()


@pytest.fixture
def loaders():
    all_loaders = []

    def make(count, limit_s=LIMIT_S):
        new_loaders = Loaders(count, limit_s)
        all_loaders.append(new_loaders)
        return new_loaders

    yield make
    for started_loaders in all_loaders:
        started_loaders.close(time.monotonic())


def put(loaders, functions):
    """Load items by these functions, and wait until each is finished."""
    items = []
    for index, function in enumerate(functions):
        items.append(Item(Origin(str(index)), function))
    for item in items:
        loaders.put(item)
    for item in items:
        assert item.finished.wait(60)
    return items


def torn():
    raise SourceError("torn")


def test_loads_become_images_or_errors(loaders):
    sound, broken, bug = put(loaders(2), [lambda: IMAGE, torn, lambda: 1 / 0])
    assert sound.picture == IMAGE
    assert sound.error is None
    assert broken.picture is None
    assert str(broken.error) == "torn"
    assert isinstance(bug.error, InferenceError)
    assert "ZeroDivisionError" in str(bug.error)


def test_a_load_that_hangs_is_an_error_and_the_others_go_on(loaders, hanging_load):
    items = put(loaders(1), [hanging_load, lambda: IMAGE, hanging_load, lambda: IMAGE])
    assert [item.picture for item in items] == [None, IMAGE, None, IMAGE]
    assert str(items[0].error) == "not read and decoded after 0.4 s"
    assert "--input-timeout" in items[0].error.hint


def test_what_comes_late_is_ignored(loaders):
    release = threading.Event()
    (late,) = put(loaders(1), [lambda: release.wait(60) and IMAGE])
    release.set()
    time.sleep(0.05)
    assert late.picture is None
    assert isinstance(late.error, SourceError)


def test_without_a_limit_loads_may_take_any_time(loaders):
    (slow,) = put(loaders(1, limit_s=0), [lambda: time.sleep(2 * LIMIT_S) or IMAGE])
    assert slow.picture is IMAGE


def test_hanging_threads_are_bounded(loaders, hanging_load, monkeypatch):
    monkeypatch.setattr(module, "MAX_ABANDONED", 3)
    threads_before = threading.active_count()
    items = put(loaders(2), [hanging_load] * 40)
    assert threading.active_count() - threads_before <= 3 + 2 + 1
    assert {type(item.error) for item in items} == {SourceError, PlaceError}
    texts = [str(item.error) for item in items]
    assert texts[:4] == ["not read and decoded after 0.4 s"] * 4
    assert "inputs before it hang" in texts[-1]


def test_threads_that_come_back_load_again(loaders, monkeypatch):
    monkeypatch.setattr(module, "MAX_ABANDONED", 1)
    release = threading.Event()
    one_thread = loaders(1)
    put(one_thread, [lambda: release.wait(60) and IMAGE] * 3)
    release.set()
    deadline = time.monotonic() + 60
    while put(one_thread, [lambda: IMAGE])[0].picture is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert put(one_thread, [lambda: IMAGE])[0].picture is IMAGE


def test_a_suspended_process_times_nothing_out(loaders, monkeypatch):
    """The clock jumps by an hour while an input is loaded."""
    monotonic = time.monotonic
    calls = itertools.count()

    def monotonic_with_a_jump():
        jump_s = 0.0
        if next(calls) >= 5:
            jump_s = 3600.0
        return monotonic() + jump_s

    monkeypatch.setattr("detcli.core.timing.time.monotonic", monotonic_with_a_jump)
    (slow,) = put(loaders(1, limit_s=2), [lambda: time.sleep(0.8) or IMAGE])
    assert slow.picture is IMAGE


def test_one_item_is_loaded_in_time(hanging_load):
    assert load_in_time(Item(Origin("a"), lambda: IMAGE)) is IMAGE
    with pytest.raises(SourceError, match="torn"):
        load_in_time(Item(Origin("a"), torn))
    with pytest.raises(SourceError, match="not read and decoded"):
        load_in_time(Item(Origin("a"), hanging_load), LIMIT_S)


def frames(count, progress):
    """Yield so many frames of a video, and expect one more at the end."""
    progress.expect(count - 1)
    for number in range(count):
        yield Item(Origin("v", frame=number), lambda: IMAGE)
    progress.expect(1)


def test_frames_come_in_order_with_their_total():
    progress = SourceProgress(1)
    items = read_in_time("v", lambda own_progress: frames(10, own_progress), progress, LIMIT_S)
    assert next(items).origin.frame == 0
    assert progress.total == 10
    time.sleep(2 * LIMIT_S)  # a slow consumer times nothing out
    assert frames_of(items) == list(range(1, 10))
    assert progress.total == 11


def test_an_unknown_total_stays_unknown():
    def endless(own_progress):
        own_progress.expect(None)
        yield from frames(3, own_progress)

    progress = SourceProgress(1)
    assert len(list(read_in_time("v", endless, progress, LIMIT_S))) == 3
    assert progress.total is None


@pytest.mark.parametrize("frame_count", [0, 1, 5])
def test_a_video_that_hangs_is_an_error(hanging_load, frame_count):
    def read(own_progress):
        yield from frames(frame_count, own_progress)
        hanging_load()

    progress = SourceProgress(1)
    items = list(read_in_time("v", read, progress, LIMIT_S))
    assert frames_of(items[:-1]) == list(range(frame_count))
    assert error_of(items[-1]) == "no frame can be read after 0.4 s"
    assert len(progress.hanging) == 1


def test_steps_without_a_frame_are_progress():
    def read(own_progress):
        for _ in range(20):
            time.sleep(LIMIT_S / 8)
            own_progress.steps += 1
        yield from frames(1, own_progress)

    (item,) = read_in_time("v", read, SourceProgress(1), LIMIT_S)
    assert item.origin.frame == 0


def test_hanging_videos_are_bounded(hanging_load, monkeypatch):
    monkeypatch.setattr(module, "MAX_ABANDONED", 2)

    def read(own_progress):
        hanging_load()
        yield from frames(1, own_progress)

    progress = SourceProgress(5)
    texts = []
    for _ in range(5):
        for item in read_in_time("v", read, progress, LIMIT_S):
            texts.append(error_of(item))
    assert len(texts) == 5
    for text in texts[:2]:
        assert not text.startswith("not read:")
    for text in texts[2:]:
        assert text.startswith("not read:")


def test_an_error_of_the_reader_is_raised():
    def read(own_progress):
        yield from frames(2, own_progress)
        raise ZeroDivisionError

    items = read_in_time("v", read, SourceProgress(1), LIMIT_S)
    assert next(items).origin.frame == 0
    assert next(items).origin.frame == 1
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_closing_ends_the_reader():
    closed = threading.Event()

    def read(own_progress):
        try:
            yield from frames(1000, own_progress)
        finally:
            closed.set()

    items = read_in_time("v", read, SourceProgress(1), LIMIT_S)
    next(items)
    items.close()  # type: ignore[attr-defined]
    assert closed.is_set()
