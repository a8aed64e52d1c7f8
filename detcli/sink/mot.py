"""MOTChallenge: the tracks of each video in a file, as TrackEval and motmetrics read them."""

from detcli.files import AtomicFile
from detcli.record import Record
from detcli.sink.folder import OutputFolder, PerClip

SUFFIX = ".txt"


class MotSink:
    """Writes `frame,id,left,top,width,height,score,-1,-1,-1` for each detection with a track.

    Frames, tracks and pixels are counted from 1, as the format has it. A video without tracks has
    an empty file.
    """

    def __init__(self, folder: OutputFolder) -> None:
        self._files = PerClip(lambda record: MotFile(folder, record), MotFile.close)

    def write(self, record: Record) -> None:
        """Write the rows of a frame.

        Raises:
            OutputError: They cannot be written.
        """
        if record.origin.frame is not None:
            self._files.of(record).write(record)

    def close(self) -> None:
        """Make all files visible.

        Raises:
            OutputError: One is not complete.
        """
        self._files.close()


class MotFile:
    """The tracks of one video."""

    def __init__(self, folder: OutputFolder, first: Record) -> None:
        self._path = folder.video_of(first, SUFFIX)
        self._file = AtomicFile(folder.real(self._path))

    def write(self, record: Record) -> None:
        record.saved.append(self._path)
        found = record.detections
        if found is None or found.track_id is None:
            return
        for number, (box, score, _, _) in zip(found.track_id.tolist(), found, strict=True):
            if number > 0:
                left, top, right, bottom = box.tolist()
                place = f"{left + 1:.2f},{top + 1:.2f},{right - left:.2f},{bottom - top:.2f}"
                frame = (record.origin.frame or 0) + 1
                self._file.write(f"{frame},{number},{place},{score:.4f},-1,-1,-1\n")

    def close(self) -> None:
        self._file.commit()
