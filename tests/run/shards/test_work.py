"""Workers: what they make of tasks, whatever the batches, detectors and shards."""

import json
import random as rng
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import number_video
import pytest
from colour_model import NAMES, image, image_of
from json_lines import column_of
from shard_headers import written

from detcli import __version__
from detcli.config.config import Config, Runtime, Settings
from detcli.config.device import Device, DeviceOptions
from detcli.config.inputs import InputOptions
from detcli.config.outputs import Outputs
from detcli.core.errors import OutputError, PlaceError
from detcli.model.zoo import find
from detcli.run import open_run
from detcli.run.batches import BatchDetector
from detcli.run.pipeline import Pipeline
from detcli.run.shards.parts import Merge
from detcli.run.shards.store import LocalFolder
from detcli.run.shards.work import (
    Done,
    Failed,
    Progress,
    Ready,
    Task,
    WorkRequest,
    _Worker,
    work,
)
from detcli.source.listing import Unusable
from detcli.source.sources import Sources

CPU = Device.parse("cpu")


@pytest.fixture
def names(tmp_path):
    """Names of 20 images of several sizes, of one that is torn, and of a video."""
    random = rng.Random(0)  # noqa: S311 - no secret
    outcomes = []
    for number in range(20):
        squares = []
        for _ in range(3):
            squares.append((random.choice(NAMES), random.randrange(8), random.randrange(8)))
        path = tmp_path / f"{number:02}.png"
        cv2.imwrite(str(path), image_of(squares, size=(64, 64 + 16 * (number % 4))))
        outcomes.append(str(path))
    (tmp_path / "07.png").write_bytes(b"\x89PNG torn")
    video = number_video.open_writer(tmp_path / "08.mp4", (64, 64))
    for number in range(9):
        video.write(image(("red", number % 8, 1)))
    video.release()
    return outcomes[:8] + [str(tmp_path / "08.mp4")] + outcomes[8:]


class Play:
    """A run whose tasks are processed one after the other by one worker."""

    def __init__(self, folder, names, size, model, batch=None, **groups):
        self.store = LocalFolder(folder)
        config = Config(
            runtime=Runtime(model=str(model), device=(CPU,), batch=batch),
            settings=Settings(conf=0.5),
            outputs=Outputs(output=f"{folder}/"),
            **groups,
        )
        self.request = WorkRequest(config, find(str(model)), id)
        with open_run(config, self.request.model) as run:
            provenance = {"detcli": __version__, "settings": run.settings()}
        self.manifest = written(self.store, names, size, **provenance)
        self.reports = []

    def tasks(self):
        return [Task.whole(shard, self.manifest.part(shard.number)) for shard in self.manifest]

    def work(self, tasks=None, detectors=1):
        request = self.request.placed([CPU], detectors, detectors)
        work(request, tasks or self.tasks(), self.reports.append)

    def of(self, kind):
        return [report for report in self.reports if isinstance(report, kind)]

    def shard_numbers(self):
        """The shards that are done, in the order in which they were."""
        return [report.task.shard.number for report in self.of(Done)]

    def reported_counts(self):
        """How many records each progress report counts."""
        return [progress.records for progress in self.of(Progress)]

    def records(self):
        merge = Merge(self.store, self.manifest)
        records = list(merge)
        assert merge.faults == []
        return records


def in_one_run(names, model, batch, workers):
    """The records of one run on one machine."""
    options = DeviceOptions(workers=workers)
    with (
        BatchDetector(find(str(model)), CPU, Settings(conf=0.5), options) as detector,
        Sources(names) as sources,
    ):
        pipeline = Pipeline(detector, batch or detector.batch_size, ["cpu"] * (workers - 1))
        return [record.to_json() for record in pipeline.run(sources)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [(1, None, 1), (3, 4, 1), (7, 1, 2), (7, 4, 2), (50, 3, 3)])
def test_batches_across_shards_change_nothing(tmp_path, names, make_model, mode):
    size, batch, detectors = mode
    model = make_model(batch=None)
    play = Play(tmp_path / "boxes", names, size, model, batch=batch)
    play.work(detectors=detectors)
    assert play.records() == in_one_run(names, model, None, 1) == in_one_run(names, model, 4, 2)


def test_a_worker_tells_what_it_does(tmp_path, names, make_model):
    play = Play(tmp_path / "boxes", names, 8, make_model())
    play.work()
    (ready,) = play.of(Ready)
    assert ready.settings["model"] == "colours"
    assert ready.settings["conf"] == 0.5
    assert isinstance(play.reports[0], Ready)
    assert play.shard_numbers() == [0, 1, 2]
    first, second, _ = play.of(Done)
    assert first.counts.images == 7
    assert first.counts.frames == 0
    assert first.counts.failed == 1
    assert second.counts.images == 7
    assert second.counts.frames == 9
    assert sum(play.reported_counts()) == 29
    play.work(play.tasks()[:1])  # whose part is there already
    assert len(play.of(Done)) == 4


@pytest.mark.parametrize("fast_decode", [False, True])
def test_jpegs_are_decoded_into_the_devices_memory(tmp_path, make_model, allocated, fast_decode):
    pytest.importorskip("simplejpeg")
    path = str(tmp_path / "a.jpg")
    cv2.imwrite(path, image(("red", 1, 1), size=(200, 200)))
    play = Play(
        tmp_path / "boxes", [path], 1, make_model(), inputs=InputOptions(fast_decode=fast_decode)
    )
    play.work()
    assert len(play.records()) == 1
    assert allocated == [(100, 100) if fast_decode else (200, 200)]


def test_a_piece_is_sent_back(tmp_path, names, make_model):
    play = Play(tmp_path / "boxes", names, 50, make_model())
    play.work([Task(play.manifest.shard(0), None, 6, 9)])
    (completed,) = play.of(Done)
    assert len(completed.lines.splitlines()) == 1 + 1 + 9
    assert play.manifest.last_attempts() == {}


def test_names_without_records_end_their_shard(tmp_path, names, make_model, monkeypatch):
    """Videos that give no frame, not even a failed one; and failures of the manifest."""
    plain = Sources.open
    monkeypatch.setattr(
        Sources, "open", lambda self, name: [] if name == names[8] else plain(self, name)
    )
    entries = [names[8], Unusable("pics", "cannot list it", "check"), names[0], names[1]]
    play = Play(tmp_path / "boxes", entries, 1, make_model())
    play.work()
    assert sorted(play.shard_numbers()) == [0, 1, 2, 3]
    records = play.records()
    assert column_of(records, "source") == ["pics"] + list(names[:2])
    assert column_of(records, "index") == [0, 1, 2]


def test_the_next_task_is_asked_for_before_the_last_is_done(tmp_path, names, make_model):
    """So that the device never waits between shards."""
    play = Play(tmp_path / "boxes", names, 10, make_model())
    requested = threading.Event()
    all_tasks = play.tasks()

    def tasks():
        yield all_tasks[0]
        requested.set()
        yield from all_tasks[1:]

    def report(event):
        if isinstance(event, Done) and event.task is all_tasks[0]:
            assert requested.wait(60)
        play.reports.append(event)

    work(play.request, tasks(), report)
    assert len(play.of(Done)) == len(all_tasks)


def test_a_part_that_cannot_be_published_stays_to_be_done(tmp_path, names, make_model):
    play = Play(tmp_path / "boxes", names, 10, make_model())
    (tmp_path / "boxes" / "part-00001.jsonl").mkdir()
    play.work()
    (failed,) = play.of(Failed)
    assert type(failed.error) is OutputError
    assert failed.task.shard.number == 1
    assert "part-00001" in str(failed.error)
    assert failed.mostly  # none of its names has a record that counts
    (tmp_path / "boxes" / "_manifest.jsonl").unlink()  # as where the drive of the folder is gone
    play.work(play.tasks()[:1])
    assert "boxes has no _manifest.jsonl" in str(play.of(Failed)[1].error)


def test_an_outage_is_no_result(tmp_path, names, make_model):
    """The first name is sound, and the others cannot be read; the image that is torn is one."""
    for name in names[9:]:
        Path(name).unlink()
        Path(name).symlink_to("/no/such/mount/x.png")
    play = Play(tmp_path / "boxes", names, 8, make_model())
    play.work()
    assert play.shard_numbers() == [0]
    for failed, mostly in zip(play.of(Failed), (False, True), strict=True):
        assert type(failed.error) is PlaceError
        assert failed.mostly == mostly
    assert play.manifest.last_attempts() == {0: 0}


def missing_names(folder, count):
    """`count` names of images that do not exist."""
    return [str(folder / f"gone {number}.png") for number in range(count)]


@pytest.mark.parametrize(
    ("missing_count", "is_given_up"), [(15, False), (16, True)], ids=["15 in a row", "16 in a row"]
)
def test_sixteen_names_in_a_row_that_cannot_be_found_are_an_outage(
    tmp_path, names, make_model, missing_count, is_given_up
):
    """One more is missing before them, but a name that can be read begins the count anew."""
    missing = missing_names(tmp_path, missing_count)
    play = Play(tmp_path / "boxes", [missing[0], names[0]] + missing, 20, make_model())
    play.work()
    assert bool(play.of(Failed)) == is_given_up
    assert bool(play.of(Done)) == (not is_given_up)


@pytest.mark.parametrize(
    ("missing_count", "is_given_up"), [(15, False), (16, True)], ids=["15", "16"]
)
def test_the_first_sixteen_names_may_be_the_outage(
    tmp_path, make_model, missing_count, is_given_up
):
    missing = missing_names(tmp_path, missing_count)
    play = Play(tmp_path / "boxes", missing, 20, make_model())
    play.work()
    assert bool(play.of(Failed)) == is_given_up
    assert bool(play.of(Done)) == (not is_given_up)


def test_half_of_the_names_are_not_most_of_them(tmp_path, names, make_model):
    """One of two is on a drive that is gone."""
    on_lost_drive = tmp_path / "link.png"
    on_lost_drive.symlink_to("/no/such/mount/x.png")
    play = Play(tmp_path / "boxes", [names[0], str(on_lost_drive)], 2, make_model())
    play.work()
    [failed] = play.of(Failed)
    assert not failed.mostly


def test_progress_is_told_at_the_end_of_a_task_and_else_now_and_then(
    tmp_path, names, make_model, monkeypatch
):
    """While no time passes, only the ends of tasks are told."""
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr("detcli.run.shards.work.time", clock)
    play = Play(tmp_path / "boxes", names[:6], 3, make_model())
    play.work()
    assert play.reported_counts() == [3, 3]


def test_the_size_of_a_task_is_the_number_of_its_names(tmp_path, names, make_model):
    play = Play(tmp_path / "boxes", names, 50, make_model())
    assert Task(play.manifest.shard(0), None, 6, 9).size == 3
    (task,) = play.tasks()
    assert task.size == len(names)


@pytest.mark.parametrize(("attempt", "has_stamp"), [(0, False), (1, True)])
def test_a_part_has_the_stamps_of_files_that_were_tried_again(
    tmp_path, names, make_model, attempt, has_stamp
):
    """The manifest has those of the first attempt."""
    play = Play(tmp_path / "boxes", names[:1], 1, make_model())
    shard = replace(play.manifest.shard(0), attempt=attempt)
    play.work([Task.whole(shard, "part-00000.jsonl")])
    part = (tmp_path / "boxes" / "part-00000.jsonl").read_text()
    assert ("file_stamp" in json.loads(part)) == has_stamp


def test_a_piece_has_no_stamps(tmp_path, names, make_model):
    play = Play(tmp_path / "boxes", names[:1], 1, make_model())
    shard = replace(play.manifest.shard(0), attempt=1)
    play.work([Task(shard, None, 0, 1)])
    [completed] = play.of(Done)
    assert "file_stamp" not in json.loads(completed.lines)


def test_progress_is_told_every_half_second(tmp_path, names, make_model, monkeypatch):
    times_s = [1000.0, 1000.48, 1000.5, 1000.5, 1000.75, 1000.75, 1000.75]
    clock = SimpleNamespace(monotonic=lambda: times_s.pop(0))
    monkeypatch.setattr("detcli.run.shards.work.time", clock)
    play = Play(tmp_path / "boxes", names[:4], 4, make_model())
    play.work()
    assert play.reported_counts() == [2, 2]


def worker_with_items(*items):
    """A worker with one task, which has these items."""
    worker = _Worker(None, None, None)
    worker._items_of = lambda _: iter(items)  # noqa: SLF001
    return worker


def test_no_more_is_read_of_a_task_that_is_given_up():
    worker = worker_with_items("first", "second", "third")
    task = SimpleNamespace(task=None, outage=None)
    items = worker._items_until_outage(task)  # noqa: SLF001
    assert next(items) == ("first", False)
    task.outage = PlaceError("the drive is gone", "check it")
    assert list(items) == [("second", True)]


def test_the_last_item_of_a_task_is_told():
    worker = worker_with_items("first", "second")
    task = SimpleNamespace(task=None, outage=None)
    items = list(worker._items_until_outage(task))  # noqa: SLF001
    assert items == [("first", False), ("second", True)]


def test_a_worker_that_stops_closes_the_files_of_its_tasks(tmp_path, names, make_model):
    play = Play(tmp_path / "boxes", names, 50, make_model())
    [task] = play.tasks()
    worker = worker_with_items("first", "second")
    next(worker.items([task]))
    [open_task] = worker._open_tasks  # noqa: SLF001
    worker.close()
    assert open_task.writer._file.closed  # noqa: SLF001


def test_a_worker_is_closed_when_its_tasks_cannot_be_listed(
    tmp_path, names, make_model, monkeypatch
):
    closed = []

    def note_close(worker):
        closed.append(worker)

    monkeypatch.setattr(_Worker, "close", note_close)
    play = Play(tmp_path / "boxes", names, 50, make_model())

    def tasks():
        yield from ()
        raise PlaceError("the drive is gone", "check it")

    with pytest.raises(PlaceError, match="the drive is gone"):
        work(play.request, tasks(), play.reports.append)
    assert len(closed) == 1


def test_the_request_of_a_worker_names_no_sources(tmp_path, names, make_model):
    """Its names come with the tasks."""
    inputs = InputOptions(source=(), files_from="names.txt", null=True)
    play = Play(tmp_path / "boxes", names, 50, make_model(), inputs=inputs)
    placed = play.request.placed([CPU], workers=2, cores=3)
    assert placed.config.inputs.files_from is None
    assert not placed.config.inputs.null
    assert placed.config.runtime.workers == 2
    assert placed.cores == 3
