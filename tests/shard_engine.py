"""An engine whose one worker is a thread of the test: seconds faster than a process."""

import queue
import threading
import warnings
from dataclasses import replace

from detcli.run.shards.workers import Ended, Workers, serve


def open_here(request):
    """Start the thread, see `detcli.run.shards.open_engine`."""
    start = replace(request, set_up=id)  # the test's process is set up
    return Workers(1, lambda _, tell, __: _Thread(start, tell))


class _Thread:
    """See `detcli.run.shards.workers.Worker`."""

    def __init__(self, start, tell):
        self._tasks = queue.SimpleQueue()
        self._tasks.put(start)
        self.send = self._tasks.put
        self._thread = threading.Thread(target=self._work, args=[tell])
        self._thread.start()

    def release(self):
        self._tasks.put(None)

    def end(self):
        self._thread.join()

    def _work(self, tell):
        with warnings.catch_warnings():
            serve(self._tasks.get, tell)
        tell(Ended(""))
