# mypy: disable-error-code=arg-type
"""One record per input, in order, whatever happens."""

import itertools
import threading
import time

import numpy as np
import pytest

from detcli.core.errors import DeviceError, DeviceMemoryError, InferenceError, SourceError
from detcli.core.timing import StageTimes
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import Origin, Video
from detcli.run import pipeline as module
from detcli.run.pipeline import Pipeline
from detcli.source.loading import Item, failed_item


class Double:
    """A stand-in for BatchDetector that finds as many objects as the image's first value says."""

    model_name = "stand-in"
    precision = "f32"
    finished_batches = 0

    def __init__(self, device="cpu", work=lambda _: None, in_flight=1):
        self.device = device
        self.work = work
        self.in_flight = in_flight
        self.times = StageTimes()
        self.batches = []  # the size of each
        self.threads = set()  # their ids
        self.closed = False
        self.started = 0  # batches
        self.waited = 0
        self.max_in_flight = 0
        self.clones = {}

    def clone(self, device):
        self.clones[device] = Double(device, self.work, self.in_flight)
        return self.clones[device]

    def require_region(self, image):
        return image

    def submit(self, images):
        self.threads.add(threading.get_ident())
        self.batches.append(len(images))
        self.started += 1
        self.max_in_flight = max(self.max_in_flight, self.started - self.waited)
        counts = [int(image.pixels[0, 0, 0]) for image in images]
        self.work(counts)

        def wait():
            self.waited += 1
            return [self.detections(count) for count in counts]

        return wait

    @staticmethod
    def detections(count):
        zeros = np.zeros(count, np.int64)
        return Detections(
            np.zeros((count, 4), np.float32), np.ones(count, np.float32), zeros, ("thing",)
        )

    def close(self):
        self.closed = True


def shade(value):
    return Image.whole(np.full((2, 2, 3), value, np.uint8))


def items(values):
    loaded_items = []
    for value in values:
        item = Item(Origin(f"item {value}"), lambda value=value: shade(value))
        loaded_items.append(item)
    return loaded_items


def counts(records):
    """How many objects each record has; None for an error."""
    object_counts = []
    for record in records:
        if record.error:
            object_counts.append(None)
        else:
            object_counts.append(len(record.detections))
    return object_counts


def indices_of(records):
    return [record.index for record in records]


@pytest.mark.parametrize(
    ("batch", "clones", "in_flight"),
    [
        (1, (), 2),
        (1, ("cuda:1", "cuda:2"), 1),
        (2, ("cpu",), 1),
        (2, ("cuda:1", "cuda:2"), 2),
        (3, (), 1),
        (3, ("cpu",), 2),
        (100, ("cpu",), 1),
        (100, (), 2),
    ],
)
def test_each_item_gets_a_record_in_order(batch, clones, in_flight):
    def be_slow_now_and_then(counts):
        time.sleep(0.002 * (sum(counts) % 3))

    detector = Double(work=be_slow_now_and_then, in_flight=in_flight)
    records = list(Pipeline(detector, batch, clones).run(iter(items(range(50)))))
    assert counts(records) == list(range(50))
    assert indices_of(records) == list(range(50))
    for record in records:
        assert record.origin.source == f"item {record.index}"
    assert list(Pipeline(detector, batch).run([])) == []


def test_all_batches_but_the_last_are_full():
    detector = Double()
    list(Pipeline(detector, 4).run(items(range(10))))
    assert detector.batches == [4, 4, 2]


def test_a_batch_does_not_wait_for_a_slow_source():
    """A camera's frame is detected on before the next one comes."""
    proceed = threading.Event()

    def source():
        yield from items([1])
        assert proceed.wait(10)
        yield from items([2])

    records = Pipeline(Double(), 8).run(source())
    assert counts([next(records)]) == [1]
    proceed.set()
    assert counts(records) == [2]


def test_as_many_batches_are_in_flight_as_suit_the_device():
    detector = Double(in_flight=2)
    loaded = threading.Barrier(4)  # all are loaded before the first batch can start

    def load(value):
        loaded.wait(10)
        return shade(value)

    source = []
    for value in range(4):
        source.append(Item(Origin(str(value)), lambda value=value: load(value)))
    pipeline = Pipeline(detector, 1)
    # Four loaders, whatever the machine: each waits for the others.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "available_cores", lambda: 4)
        assert counts(pipeline.run(source)) == [0, 1, 2, 3]
    assert detector.max_in_flight == 2


def test_each_detector_runs_on_its_own_thread():
    """CUDA graphs are captured on a thread."""
    both = threading.Barrier(2)
    detector = Double(device="cuda:0", work=lambda _: both.wait(10))
    records = list(Pipeline(detector, 1, ["cuda:1"]).run(items(range(10))))
    assert {record.device for record in records} == {"cuda:0", "cuda:1"}
    clone = detector.clones["cuda:1"]
    assert len(detector.threads) == 1
    assert len(clone.threads) == 1
    assert detector.threads != clone.threads
    assert clone.closed
    assert not detector.closed  # the caller closes it


def test_an_item_that_cannot_be_loaded_becomes_an_error_record():
    torn = SourceError("torn", "mend it")
    bug = Item(Origin("bug"), lambda: 1 / 0)  # type: ignore[return-value]
    first, second, third = items([3, 4, 5])
    source = [first, failed_item("torn", torn), second, bug, third]
    records = list(Pipeline(Double(), 2).run(source))
    assert counts(records) == [3, None, 4, None, 5]
    assert records[1].error is torn
    assert records[1].picture is None
    assert "ZeroDivisionError" in str(records[3].error)


@pytest.mark.parametrize("error", [InferenceError("no"), SystemExit(), RuntimeError("worse")])
def test_a_failing_batch_becomes_error_records_and_the_rest_completes(error):
    def fail(counts):
        if 5 in counts:
            raise error

    records = list(Pipeline(Double(work=fail), 3, ["cpu"]).run(items(range(12))))
    assert counts(records) == [0, 1, 2, None, None, None] + list(range(6, 12))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: 1 / 0, "ZeroDivisionError"),
        (lambda results: results[1:], "1 results for 2 images"),
    ],
)
def test_a_failure_while_waiting_becomes_error_records(change, message):
    class Late(Double):
        def submit(self, images):
            wait = super().submit(images)
            return lambda: change(wait())

    records = list(Pipeline(Late(), 2).run(items(range(4))))
    assert counts(records) == [None] * 4
    assert message in str(records[0].error)


def test_a_worker_that_dies_ends_the_run_at_once(monkeypatch):
    monkeypatch.setattr(module.Worker, "_finish_batch", lambda *_: 1 / 0)
    with pytest.raises(InferenceError, match="ZeroDivisionError"):
        list(Pipeline(Double(), 1).run(items([1])))


def test_a_device_without_memory_ends_the_run():
    """No later batch would fit, either."""

    def full(_):
        raise DeviceMemoryError("a batch of 1 image does not fit")

    with pytest.raises(DeviceMemoryError):
        list(Pipeline(Double(work=full), 1).run(items(range(3))))


def test_a_second_device_that_cannot_be_opened_ends_the_run():
    class Alone(Double):
        def clone(self, device):
            raise DeviceError(f"no {device}")

    for count in (1, 200):  # even in a run that does not need it
        slow = Alone(work=lambda _: time.sleep(0.01))
        with pytest.raises(DeviceError, match="no cuda:7"):
            list(Pipeline(slow, 1, ["cuda:7"]).run(items(range(count))))


def test_a_source_that_breaks_raises_after_its_last_record():
    def source():
        yield from items([1, 2])
        raise SourceError("the list broke off")

    records = Pipeline(Double(), 4).run(source())
    assert counts([next(records), next(records)]) == [1, 2]
    with pytest.raises(SourceError, match="broke off"):
        next(records)


@pytest.fixture
def _impatient(monkeypatch):
    monkeypatch.setattr(module, "STALL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(module, "POLL_S", 0.02)


@pytest.mark.usefixtures("_impatient")
def test_a_device_that_hangs_is_given_up():
    released = threading.Event()
    records = Pipeline(Double(work=lambda _: released.wait(20)), 1).run(items([1]))
    with pytest.raises(InferenceError, match="has finished nothing"):
        next(records)
    released.set()


@pytest.mark.usefixtures("_impatient")
def test_a_device_that_is_busy_with_many_tiles_is_waited_for(monkeypatch):
    count_tiles = property(lambda self: next(self.tiles))
    monkeypatch.setattr(Double, "finished_batches", count_tiles, raising=False)
    detector = Double(work=lambda _: time.sleep(0.5))
    detector.tiles = itertools.count(1)  # type: ignore[attr-defined]
    assert counts(Pipeline(detector, 1).run(items([1]))) == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_a_load_that_hangs_is_not_the_fault_of_the_device():
    released = threading.Event()
    hang = Item(Origin("hang"), lambda: released.wait(60) and shade(1))  # type: ignore[return-value]
    before, after = items([3, 4])
    source = [before, hang, after]
    records = list(Pipeline(Double(), 1, input_timeout_s=0.5).run(source))
    released.set()
    assert counts(records) == [3, None, 4]
    assert str(records[1].error) == "not read and decoded after 0.5 s"
    assert isinstance(records[1].error, SourceError)


def test_no_more_items_are_read_than_there_is_room_for():
    read_count = 0

    def endless():
        nonlocal read_count
        while True:
            yield Item(Origin("again"), lambda: shade(1))
            read_count += 1

    records = Pipeline(Double(), 2).run(endless())
    for _ in range(20):
        next(records)
    time.sleep(0.05)
    assert read_count < 20 + 2 * 3 + 2
    records.close()


def test_closing_stops_the_threads():
    before = set(threading.enumerate())
    endless = (Item(Origin("again"), lambda: shade(1)) for _ in itertools.count())
    records = Pipeline(Double(), 1, ["cpu"]).run(endless)
    next(records)
    records.close()
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) - before == set()


def test_skipped_items_are_counted_but_not_loaded():
    source = items(range(6))
    source.append(Item(Origin("a.mp4", frame=7, time_s=0.28, video=Video(25.0)), lambda: shade(1)))
    records = list(Pipeline(Double(), 2).run(source, skip=lambda item: item in source[1:3]))
    assert indices_of(records) == [0, 3, 4, 5, 6]
    assert records[-1].origin == source[-1].origin
