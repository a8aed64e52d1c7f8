"""Pools and forks: processes that open a detector each get what a thread of this one gets."""

import pickle
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

from detcli import Detections, Detector, DeviceOptions, Settings

PATHS = ["street.jpg", "pics/person.jpg", "pics/car.jpg"]

detectors: list[Detector] = []  # the one of this process


def open_detector(settings: Settings) -> None:
    """Open the detector of a process, when the process starts."""
    options = DeviceOptions(cores=1)
    detectors.append(Detector("yolov10n", device="cpu", settings=settings, options=options))


def detect(path: str) -> Detections:
    """Detect objects by the detector of this process."""
    detector = detectors[-1]
    return detector(path)


def main() -> None:
    """Compare processes that are forked and started anew with threads."""
    settings = Settings(conf=0.4)
    methods = ["spawn"]
    if sys.platform == "linux":
        methods.append("fork")
    by_method: dict[str, list[Detections]] = {}
    for method in methods:  # before this process has a detector, as a fork must not use it
        context = get_context(method)
        with ProcessPoolExecutor(1, context, open_detector, (settings,)) as pool:
            by_method[method] = list(pool.map(detect, PATHS))

    with Detector("yolov10n", device="cpu", settings=settings) as detector:
        with ThreadPoolExecutor(max_workers=3) as threads:
            expected = list(threads.map(detector, PATHS))
        for method, results in by_method.items():
            print(method, results == expected)
        assert pickle.loads(pickle.dumps(expected)) == expected
        try:
            pickle.dumps(detector)
        except TypeError as error:
            print(error)


if __name__ == "__main__":
    main()
