"""The flow: each input is read, decoded and detected on; errors become records too."""

from collections.abc import Iterable, Iterator

from detcli.detector import Detector
from detcli.errors import DetcliError, DeviceMemoryError, InferenceError
from detcli.record import Record
from detcli.stream.decode import decode
from detcli.stream.source import Item


def detect(items: Iterable[Item], detector: Detector) -> Iterator[Record]:
    """Yield one record for each item, in order; an item that fails does not stop the others.

    Raises:
        DeviceMemoryError: The device has not enough memory for any of them.
    """
    model, device = detector.model_name, detector.device
    for index, item in enumerate(items):
        try:
            image = decode(item)
            detections = detector(image)
        except DeviceMemoryError:
            raise  # the network's input has one size: no other picture would fit
        except DetcliError as error:
            yield Record(item.source, index, model, device, error=error)
        except MemoryError as error:
            failure = InferenceError(f"out of memory: {error}", "use a smaller --imgsz")
            yield Record(item.source, index, model, device, error=failure)
        else:
            yield Record(item.source, index, model, device, image, detections)
