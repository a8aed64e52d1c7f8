"""Sources as they are annotated: read, without detections, into a sink of videos."""

from sample_records import picture

from detcli.config.config import Inputs
from detcli.data.record import Record
from detcli.sink.folder import OutputFolder
from detcli.sink.video import VideoSink
from detcli.source.sources import Sources

NOTHING = picture(count=0).detections


def annotate(source, folder, *, inputs=Inputs(), kept=bool, **sink_options):  # noqa: B008
    """Write the video of a source, and return its path.

    Args:
        source: A file or an address.
        folder: Where the video is made.
        inputs: How the source is read.
        kept: Which of its records the sink gets.
        sink_options: Of `VideoSink`.
    """
    sink = VideoSink(OutputFolder(folder), **sink_options)
    with Sources([str(source)], inputs) as sources:
        for index, item in enumerate(sources):
            record = Record(item.origin, index, "m", "cpu", item.load(), NOTHING)
            if kept(record):
                sink.write(record)
    sink.close()
    (path,) = folder.glob("[!.]*")
    return path
