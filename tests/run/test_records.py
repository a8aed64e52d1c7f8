"""Records of `predict` that are closed early, with their threads, from any side."""

import copy
import itertools
import pickle
import threading
import time

import number_video
import pytest
from origins import frames_of

from detcli import Detector, Inputs, predict
from detcli.core.errors import InferenceError
from detcli.core.threads import BackgroundThread

MANY_FRAMES = 100


@pytest.fixture
def long_film(tmp_path):
    """A video of more frames than are read ahead."""
    return number_video.write(tmp_path / "film.avi", MANY_FRAMES, code="MJPG")


@pytest.fixture
def detector(make_model):
    with Detector(make_model(), "cpu") as detector:
        yield detector


def background_threads():
    """The threads of all runs in this process."""
    return [thread for thread in threading.enumerate() if isinstance(thread, BackgroundThread)]


def running_after_wait():
    """The threads that still run after they had the time to end."""
    for thread in background_threads():
        thread.join(20)
    return background_threads()


def test_records_are_an_iterator(detector, long_film):
    records = predict(long_film, detector)
    assert iter(records) is records
    frames = frames_of(records)
    assert frames == list(range(MANY_FRAMES))
    with pytest.raises(StopIteration):
        next(records)


def test_a_with_block_ends_the_threads(detector, long_film):
    with predict(long_film, detector) as records:
        assert next(records).origin.frame == 0
        assert background_threads() != []
    assert running_after_wait() == []
    assert list(records) == []


def test_close_ends_the_threads_and_may_be_called_again(detector, long_film):
    records = predict(long_film, detector)
    next(records)
    records.close()
    records.close()
    assert running_after_wait() == []
    with pytest.raises(StopIteration):
        next(records)


def test_records_that_were_never_started_can_be_closed(detector, long_film):
    records = predict(long_film, detector)
    records.close()
    assert list(records) == []


def test_closing_the_detector_ends_the_threads(make_model, long_film):
    detector = Detector(make_model(), "cpu")
    several = [predict(long_film, detector) for _ in range(2)]
    for records in several:
        next(records)
    detector.close()
    assert running_after_wait() == []


@pytest.mark.parametrize("taken", [0, 1])
def test_records_without_their_detector_raise(make_model, long_film, taken):
    """An end without an error would look like the end of the video."""
    with Detector(make_model(), "cpu") as detector:
        records = predict(long_film, detector)
        assert len(list(itertools.islice(records, taken))) == taken
    for _ in range(2):
        with pytest.raises(InferenceError, match="the detector has been closed"):
            next(records)


def test_records_that_were_complete_stay_so_without_their_detector(make_model, make_image):
    path = make_image("a.png", ("red", 1, 1))
    with Detector(make_model(), "cpu") as detector:
        records = predict(path, detector)
        assert len(list(records)) == 1
    assert list(records) == []


def test_predict_with_a_closed_detector_raises(make_model, long_film):
    detector = Detector(make_model(), "cpu")
    detector.close()
    with pytest.raises(InferenceError, match="the detector has been closed") as caught:
        predict(long_film, detector)
    assert caught.value.hint == "use it inside its with block"


def test_closing_a_detector_leaves_the_records_of_its_clone(detector, long_film):
    with detector.clone() as clone:
        records = predict(long_film, clone)
        next(records)
        detector.close()
        assert len(list(records)) == MANY_FRAMES - 1


class Taker(threading.Thread):
    """A thread that takes all records, and keeps what ended it."""

    def __init__(self, records):
        super().__init__(daemon=True)
        self.records = records
        self.taken = []
        self.error = None

    def run(self):
        try:
            for record in self.records:
                self.taken.append(record)
        except InferenceError as error:
            self.error = error


@pytest.fixture
def waiting_taker(detector, make_image, tmp_path):
    """A thread that waits for the next record, of a folder into which nothing more comes."""
    make_image("images/a.png", ("red", 1, 1))
    records = predict(tmp_path / "images", detector, inputs=Inputs(follow=True))
    taker = Taker(records)
    taker.start()
    deadline = time.monotonic() + 60
    while not taker.taken and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(taker.taken) == 1
    return taker


def test_another_thread_may_close_records_that_are_waited_for(waiting_taker):
    waiting_taker.records.close()
    waiting_taker.join(20)
    assert not waiting_taker.is_alive()
    assert waiting_taker.error is None
    assert len(waiting_taker.taken) == 1
    assert running_after_wait() == []


def test_another_thread_may_close_the_detector_of_records_that_are_waited_for(
    waiting_taker, detector
):
    detector.close()
    waiting_taker.join(20)
    assert not waiting_taker.is_alive()
    assert str(waiting_taker.error) == "the detector has been closed"
    assert running_after_wait() == []


def test_threads_share_the_records(detector, long_film):
    records = predict(long_film, detector)
    takers = [Taker(records) for _ in range(4)]
    for taker in takers:
        taker.start()
    frames = []
    for taker in takers:
        taker.join(60)
        frames += frames_of(taker.taken)
    assert sorted(frames) == list(range(MANY_FRAMES))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_detector_is_not_pickled_and_says_what_to_do(detector, duplicate):
    with pytest.raises(TypeError, match="pass the arguments of Detector to another process"):
        duplicate(detector)


def test_a_detector_says_in_which_precision_it_computes(detector):
    """A CPU leaves the model's own precision as it is, so there is none to tell."""
    assert detector.precision == ""


def test_records_are_not_pickled_but_a_record_is(detector, make_image):
    path = make_image("a.png", ("red", 1, 1))
    records = predict([path, "no.png"], detector)
    with pytest.raises(TypeError, match="single records, which can be pickled"):
        pickle.dumps(records)
    for record in records:
        copied = pickle.loads(pickle.dumps(record))  # noqa: S301 - our own bytes
        assert copied.to_json() == record.to_json()
