"""Where the time goes, stage by stage."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator


class StageTimes(defaultdict[str, float]):
    """Seconds spent in each stage."""

    def __init__(self) -> None:
        super().__init__(float)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self[name] += time.perf_counter() - start
