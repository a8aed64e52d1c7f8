"""An engine whose one worker is a thread of the test: seconds faster than a process."""

import queue
import threading

from detcli.shards.schedule import Rest
from detcli.shards.work import Done, Place, Progress, Ready, work

MORE = object()


class Here:
    """See `detcli.shards.engines.ShardEngine`."""

    def __init__(self, job, devices, detectors, set_up):
        del detectors, set_up  # the test's process is set up
        self._job, self._place = job, Place(devices, 1)
        self._events, self._tasks = queue.SimpleQueue(), queue.SimpleQueue()

    def __enter__(self):
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._tasks.put(None)
        self._thread.join()

    def ready(self):
        """Wait until the detector is open."""
        event = self._events.get()
        if not isinstance(event, Ready):
            raise event
        return event

    def run(self, schedule, listen):
        """Work all shards."""
        waiting, task = False, None
        while task is not Rest.END:
            match event := self._events.get():
                case Progress():
                    listen(event)
                case Done():
                    listen(schedule.done(0, event))
                case Exception():
                    raise event
            waiting = waiting or event is MORE
            if waiting and (task := schedule.next(0)) is not Rest.WAIT:
                waiting = False
                self._tasks.put(None if task is Rest.END else task)

    def _work(self):
        try:
            work(self._job, self._place, self._wanted(), self._events.put)
        except Exception as error:  # noqa: BLE001 - raised by ready or run
            self._events.put(error)

    def _wanted(self):
        while True:
            self._events.put(MORE)
            if (task := self._tasks.get()) is None:
                return
            yield task
