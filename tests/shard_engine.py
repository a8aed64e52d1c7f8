"""An engine whose one worker is a thread of the test: seconds faster than a process."""

import queue
import threading
import warnings

from detcli.shards.workers import Ended, Workers, serve


def open_here(job, devices, detectors, set_up):
    """Start the thread, see `detcli.shards.engines.OpenEngine`."""
    del detectors, set_up  # the test's process is set up
    return Workers(1, lambda _, tell: _Thread(job, devices, tell))


class _Thread:
    """See `detcli.shards.workers.Worker`."""

    def __init__(self, job, devices, tell):
        self._tasks = queue.SimpleQueue()
        self.send = self._tasks.put
        self._thread = threading.Thread(target=self._work, args=[job, devices, tell])
        self._thread.start()

    def release(self):
        self._tasks.put(None)

    def end(self):
        self._thread.join()

    def _work(self, job, devices, tell):
        with warnings.catch_warnings():
            serve(lambda: None, job, devices, self._tasks.get, tell)
        tell(Ended(""))
