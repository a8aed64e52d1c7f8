"""Sources as they are annotated: read, without detections, into a sink of videos."""

from sample_records import image

from detcli.config.inputs import InputOptions
from detcli.data.record import Record
from detcli.sink.folder import OutputFolder
from detcli.sink.video import VideoSink
from detcli.source.sources import Sources

NO_DETECTIONS = image(count=0).detections


def annotate(source, folder, *, inputs=InputOptions(), before_write=None, **sink_options):  # noqa: B008
    """Write the video of a source, and return its path.

    Args:
        source: A file or an address.
        folder: Where the video is made.
        inputs: How the source is read.
        before_write: What is called with each record before the sink gets it.
        sink_options: Of `VideoSink`.
    """
    sink = VideoSink(OutputFolder(folder), **sink_options)
    with Sources([str(source)], inputs) as sources:
        for index, item in enumerate(sources):
            record = Record(
                item.origin, index, "m", "cpu", picture=item.load(), detections=NO_DETECTIONS
            )
            if before_write is not None:
                before_write(record)
            sink.write(record)
    sink.close()
    (path,) = folder.glob("[!.]*")
    return path
