"""Annotated pictures in a folder."""

from detcli.draw import annotate
from detcli.files import write_file
from detcli.record import Record
from detcli.sink.encode import encode
from detcli.sink.folder import OutputFolder


class ImageSink:
    """Writes each picture with its detections drawn, under the input's own name.

    Frames of a video are left to VideoSink.
    """

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder

    def write(self, record: Record) -> None:
        """Write one picture; an error has none."""
        if record.picture is None or record.detections is None or record.clip is not None:
            return
        data, suffix = encode(annotate(record.picture.pixels, record.detections), record)
        write_file(self._folder.file_of(record, suffix), data)

    def close(self) -> None:
        """Nothing is left to do: each picture was complete when it was written."""
