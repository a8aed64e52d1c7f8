"""Loops: the first seconds of annotated videos as animated GIFs, which play in any chat or page.

Pillow writes them. A loop has one palette for all its frames, and stores only the pixels of a frame
that have changed, so that nothing flickers and the file is small.
"""

import io
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.core.errors import loading
from detcli.core.opencv import cv2
from detcli.data.detections import Detections
from detcli.data.geometry import Pixels, Size
from detcli.data.per_video import PerVideo
from detcli.data.record import Record, Video, notes_of
from detcli.sink.colours import Colour
from detcli.sink.draw import DEFAULT_STYLE, Style, annotate, detection_colours
from detcli.sink.folder import OutputFolder
from detcli.sink.frame_clock import FrameClock
from detcli.storage.files import write_file

INSTALL = 'pip install "detcli[video]"'

with loading("Pillow", INSTALL):
    from PIL import Image

PaletteIndices = npt.NDArray[np.uint8]
"""`(H, W)`, for each pixel the index of its colour in the palette."""

SUFFIX = ".gif"
MAX_BYTES = 5_000_000  # a file has fewer
TICKS_PER_S = 100  # GIF counts time in hundredths of a second
MS_PER_TICK = 10
MIN_TICKS = 2  # a frame that is shown for less is shown for ten ticks by browsers
MAX_RATE = 12.5  # the maximum number of frames per second
RATE_TOLERANCE = 0.01  # as a share of MAX_RATE
TIME_TOLERANCE_S = 0.005  # the times of frames may be rounded by this much

PALETTE_SIZE = 256
COLOUR_COUNT = PALETTE_SIZE - 1  # colours that pixels can have, numbered from 0
UNCHANGED = 255  # the index that means that a pixel keeps its colour
STILL = 5  # a pixel within this many shades of what is shown counts as unchanged
SAMPLED_FRAMES = 24  # at most this many frames decide on the palette
SAMPLED_STEP = 3  # from these, every third pixel of every third row
SIMILAR = 4  # colours are similar if no multiple of this many shades lies between them
MAX_BOX_COLOURS = 32  # at most this many colours of boxes are in the palette
BOX_COLOUR_SHARE = 0.004  # share of the sampled pixels that each of them counts as

log = logging.getLogger(__name__)


class LoopForm(NamedTuple):
    """How large a loop is, and how many of the frames that were collected it has."""

    longest_side: int  # in pixels; smaller images keep their size
    step: int  # 1 for all frames, 2 for every other one


FORMS = (
    LoopForm(480, 1),
    LoopForm(400, 1),
    LoopForm(400, 2),
    LoopForm(320, 2),
    LoopForm(240, 2),
    LoopForm(160, 2),
    LoopForm(96, 2),
)
"""The forms to try, the best first. Any loop fits the last one: the 188 frames of 30 seconds have
9216 pixels each, and a pixel takes at most 1.5 bytes."""

LONGEST_SIDE = FORMS[0].longest_side


class LoopFrame(NamedTuple):
    """An annotated frame, small enough for a loop."""

    pixels: Pixels
    time_s: float  # when it is shown, from the start of the loop


class GifSink(PerVideo["AnnotatedLoop"]):
    """Writes the first seconds of each annotated video to an animated GIF beside it.

    A GIF is written as soon as its seconds are over, which in the recording of a camera is long
    before the end. Images are left to ImageSink.
    """

    def __init__(
        self,
        folder: OutputFolder,
        seconds: float,
        style: Style = DEFAULT_STYLE,
        *,
        condensed: bool = False,
    ) -> None:
        """Prepare to write GIFs.

        Args:
            folder: Where they are written.
            seconds: How long each of them is. The GIF of a shorter video is as long as the video.
            style: How detections are drawn.
            condensed: Whether frames of the source are left out on purpose. The others are then
                shown one after the other at its rate, without gaps.
        """

        def begin(first: Record) -> AnnotatedLoop:
            """Begin the loop of a video with the record of its first frame."""
            clock = FrameClock(first.origin.video or Video(0.0), is_constant_rate=condensed)
            return AnnotatedLoop(folder, seconds, style, clock)

        super().__init__(begin, end=AnnotatedLoop.close)
        # Whether records of images and of videos have come, for a warning at the end.
        self._has_images = False
        self._has_videos = False

    def write(self, record: Record) -> None:
        """Add a frame of a video to its loop, if it falls into it."""
        if record.origin.video is None or record.origin.frame is None:
            self._has_images = True
            return
        self._has_videos = True
        self.state_of(record).write(record)

    def close(self) -> None:
        """Write what is left, and warn if there were only images."""
        super().close()
        if self._has_images and not self._has_videos:
            log.warning("--gif: there were images but no video, so no GIF was written")


class AnnotatedLoop:
    """Collects the first annotated frames of one video, scaled down, and writes them as a GIF.

    The loop ends early where the frames get a different size.
    """

    def __init__(
        self, folder: OutputFolder, seconds: float, style: Style, clock: FrameClock
    ) -> None:
        """Prepare to collect frames.

        Args:
            folder: Where the GIF is written.
            seconds: How long it is at most.
            style: How detections are drawn.
            clock: Says when each frame is shown.
        """
        self._folder = folder
        self._seconds = seconds
        self._style = style
        self._clock = clock
        self._interval_s = _frame_interval_s(clock.rate)
        self._frames: list[LoopFrame] = []
        self._box_colours: Counter[Colour] = Counter()  # how many boxes have each
        self._path = Path()  # of the GIF, once the loop has begun
        self._shape: tuple[int, ...] = ()  # of the frames of the source
        self._start_s = 0.0  # when the first frame is shown, by the clock
        self._last_time_s = 0.0  # of the last frame that falls into the loop
        self._is_over = False  # whether the GIF is written, so that later frames are ignored

    def write(self, record: Record) -> None:
        """Add the annotated frame of a record, if it falls into the loop and one is due.

        The first frame begins the loop. The first one after its end, or of a different size,
        finishes it: the GIF is written. A frame that could not be read is left out, and the
        previous one is shown for longer.

        The GIF is listed as a saved file of each record in its time. That includes records whose
        frame is left out, since none was due.
        """
        if self._is_over:
            return
        frame_time = self._clock.advance(record.origin)
        if frame_time is None or record.picture is None or record.detections is None:
            return

        if not self._frames:
            if self._folder.has_earlier(record, SUFFIX):
                # The interrupted run that this one continues has written the loop already.
                self._is_over = True
                return
            self._begin(record, record.picture.pixels.shape, frame_time.shown_s)

        time_s = frame_time.shown_s - self._start_s
        is_late = time_s > self._seconds - TIME_TOLERANCE_S
        if is_late or record.picture.pixels.shape != self._shape:
            # The last frame of the loop is shown until this one, or until the seconds are over.
            self._finish(min(time_s, self._seconds))
            return

        self._last_time_s = time_s
        if self._is_due(time_s):
            pixels = self._draw(record, record.detections, record.picture.pixels)
            self._frames.append(LoopFrame(pixels, time_s))
        notes_of(record).saved.append(self._path)

    def _begin(self, record: Record, shape: tuple[int, ...], shown_s: float) -> None:
        """Begin the loop with a frame, and choose the path of the GIF.

        Args:
            record: The record of the frame.
            shape: `(H, W, 3)` of its image.
            shown_s: When it is shown, by the clock.
        """
        self._path = self._folder.video_of(record, SUFFIX)
        self._shape = shape
        self._start_s = shown_s

    def _is_due(self, time_s: float) -> bool:
        """Return whether the loop needs another frame at this time: one for each interval."""
        if not self._frames:
            return True
        interval_number = (time_s + TIME_TOLERANCE_S) // self._interval_s
        last_interval_number = (self._frames[-1].time_s + TIME_TOLERANCE_S) // self._interval_s
        return interval_number > last_interval_number

    def _draw(self, record: Record, detections: Detections, pixels: Pixels) -> Pixels:
        """Draw the detections of a record on its image, and scale it to the size of a loop."""
        self._box_colours.update(detection_colours(detections))
        annotated = annotate(pixels, detections, self._style, record.overlay)
        pixel_aspect = (1, 1)
        if record.origin.video is not None:
            pixel_aspect = record.origin.video.pixel_aspect
        height, width = pixels.shape[:2]
        return _resize(annotated, loop_size((height, width), pixel_aspect, LONGEST_SIDE))

    def close(self) -> None:
        """Write the GIF of a video that has ended, if any frame could be read."""
        if self._frames and not self._is_over:
            end_s = self._last_time_s + 1 / self._clock.rate
            self._finish(min(end_s, self._seconds))

    def _finish(self, end_s: float) -> None:
        """Write the GIF, whose last frame is shown until a time, and drop the frames.

        An interrupt while it is encoded leaves the frames, which `close` then writes.
        """
        box_colours = [colour for colour, _ in self._box_colours.most_common(MAX_BOX_COLOURS)]
        data = encode_loop(self._frames, end_s, box_colours)
        self._is_over = True
        self._frames = []
        write_file(self._folder.real(self._path), data)


def _frame_interval_s(rate: float) -> float:
    """Compute the time between two frames of a loop, in seconds.

    A loop has every n-th frame of the source, so that they are evenly spaced. It has at most
    MAX_RATE frames per second: from a source with 30, it has every third frame, so 10 per second.

    Args:
        rate: Frames per second of the source.

    Examples:
        >>> _frame_interval_s(25), _frame_interval_s(30)
        (0.08, 0.1)
    """
    # With the tolerance, every other frame of a source of 25.01 is taken, as of one of 25.
    step = max(1, math.ceil(rate / MAX_RATE - RATE_TOLERANCE))
    return step / rate


def loop_size(image: Size, pixel_aspect: tuple[int, int], longest_side: int) -> Size:
    """Compute height and width of an image in a loop, where pixels are square.

    Args:
        image: Height and width of the image in its own pixels.
        pixel_aspect: Width and height of one of these as it is shown.
        longest_side: Of the image in the loop, at most; it is not enlarged for it.

    Examples:
        >>> loop_size((1080, 1920), (1, 1), 480)
        (270, 480)
        >>> loop_size((576, 720), (16, 11), 480)  # shown as 576 by 1047 pixels
        (264, 480)
    """
    height, width = image
    aspect_width, aspect_height = pixel_aspect
    shown_width = width * aspect_width / aspect_height
    scale = min(1.0, longest_side / max(height, shown_width))
    return max(1, round(height * scale)), max(1, round(shown_width * scale))


def _resize(image: Pixels, size: Size) -> Pixels:
    """Scale an image to a height and width, so that each pixel is an average."""
    height, width = size
    if image.shape[:2] == size:
        return image
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def encode_loop(
    frames: Sequence[LoopFrame], end_s: float, box_colours: Sequence[Colour] = ()
) -> bytes:
    """Encode frames as a GIF of fewer than MAX_BYTES, in the best of FORMS that allows it.

    They are tried one after the other, until one is small enough. Encoding takes long, so a form is
    passed over if the result of an earlier one shows that it would be too large as well.

    Args:
        frames: At least one; all are the same size.
        end_s: Until when the last one is shown.
        box_colours: BGR, which are kept whatever else is in the images.

    Returns:
        The file, which players repeat forever.
    """
    bytes_per_value = 0.0  # in the last form that was tried
    data = b""
    for form in FORMS:
        form_frames = _in_form(frames, form)
        value_count = sum(frame.pixels.size for frame in form_frames)
        # In smaller images, and where frames are farther apart, a pixel takes no fewer bytes.
        least_bytes = bytes_per_value * value_count
        is_last = form is FORMS[-1]
        if least_bytes >= MAX_BYTES and not is_last:
            continue
        data = _encode(form_frames, end_s, box_colours)
        if len(data) < MAX_BYTES:
            break
        bytes_per_value = len(data) / value_count
    return data


def _in_form(frames: Sequence[LoopFrame], form: LoopForm) -> list[LoopFrame]:
    """Select as many of the frames as a form has, and scale them to its size."""
    height, width = frames[0].pixels.shape[:2]
    size = loop_size((height, width), (1, 1), form.longest_side)
    form_frames = []
    for frame in frames[:: form.step]:
        form_frames.append(LoopFrame(_resize(frame.pixels, size), frame.time_s))
    return form_frames


def _encode(frames: Sequence[LoopFrame], end_s: float, box_colours: Sequence[Colour]) -> bytes:
    """Encode frames as a GIF in their size, however large the file gets.

    Args:
        frames: At least one; all are the same size.
        end_s: Until when the last frame is shown.
        box_colours: BGR, colours that the palette is sure to have.
    """
    palette = _palette_of(frames, box_colours)
    images = []
    for indices in _changed_indices(frames, palette):
        image = Image.fromarray(indices)
        image.putpalette(palette)
        images.append(image)
    file = io.BytesIO()
    images[0].save(
        file,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=[MS_PER_TICK * ticks for ticks in _durations(frames, end_s)],
        loop=0,  # forever
        palette=palette,  # the only one in the file
        # A frame stays when the next one is drawn over it, and shows through where that is
        # transparent: its pixels there are unchanged.
        disposal=1,
        transparency=UNCHANGED,
    )
    return file.getvalue()


def _durations(frames: Sequence[LoopFrame], end_s: float) -> list[int]:
    """Compute for how many ticks each frame is shown.

    The times of frames are rounded, not the durations, as their errors would add up.
    """
    start_ticks = [round(TICKS_PER_S * frame.time_s) for frame in frames]
    end_ticks = [*start_ticks[1:], round(TICKS_PER_S * end_s)]
    durations = []
    for start, end in zip(start_ticks, end_ticks, strict=True):
        durations.append(max(MIN_TICKS, end - start))
    return durations


def _palette_of(frames: Sequence[LoopFrame], box_colours: Sequence[Colour]) -> bytes:
    """Choose the palette of a loop from pixels of all its frames, and from the colours of boxes.

    Returns:
        768 bytes: red, green and blue of 256 different colours.
    """
    samples = _weigh_rare_colours(_sampled_pixels(frames))
    # The lines of boxes have few pixels. Without samples of their own, they would get the most
    # similar colour of the images.
    samples_per_box_colour = max(1, round(BOX_COLOUR_SHARE * len(samples)))
    box_samples = np.array(box_colours, np.uint8).reshape(-1, 3)
    box_samples = np.repeat(box_samples, samples_per_box_colour, axis=0)
    bgr_row = np.concatenate([samples, box_samples])[np.newaxis]

    quantized = _to_pillow(bgr_row).quantize(COLOUR_COUNT, Image.Quantize.MEDIANCUT)
    rgb_values = (quantized.getpalette() or [])[: 3 * COLOUR_COUNT]
    rgb_colours = np.array(rgb_values, np.uint8).reshape(-1, 3)
    return _filled_palette(rgb_colours).tobytes()


def _sampled_pixels(frames: Sequence[LoopFrame]) -> Pixels:
    """Return a sample of the frames' pixels, spread evenly: `(N, 3)`, blue, green and red."""
    samples = []
    frame_step = math.ceil(len(frames) / SAMPLED_FRAMES)
    for frame in frames[::frame_step]:
        samples.append(frame.pixels[::SAMPLED_STEP, ::SAMPLED_STEP].reshape(-1, 3))
    return np.concatenate(samples)


def _filled_palette(colours: Pixels) -> Pixels:
    """Drop duplicate colours, and add greys until the palette is full.

    No two colours may be equal, as Pillow looks them up by value. The last colour is a grey that no
    pixel gets, as its index, `UNCHANGED`, stands for transparent pixels.

    Args:
        colours: `(N, 3)`, red, green and blue of at most `COLOUR_COUNT` colours.

    Returns:
        `(PALETTE_SIZE, 3)`, the different colours in their order, then greys. Colours after a
        duplicate have moved up.
    """
    palette = [tuple(colour) for colour in colours.tolist()]
    palette = list(dict.fromkeys(palette))  # without duplicates

    for level in range(256):
        if len(palette) == PALETTE_SIZE:
            break
        grey = (level, level, level)
        if grey not in palette:
            palette.append(grey)
    return np.array(palette, np.uint8)


def _weigh_rare_colours(samples: Pixels) -> Pixels:
    """Give rare colours more weight among samples, so that the palette has them, too.

    A hand that is visible for a second would have few colours beside a wall that is always there.
    So a group of similar colours counts by the square root of its size: 100 samples as 10.

    Args:
        samples: `(N, 3)`, blue, green and red.

    Returns:
        `(M, 3)`: for each group, its first sample, repeated as often as the group counts.
    """
    coarse_samples = (samples // SIMILAR).astype(np.int64)  # equal for similar colours
    group_numbers = coarse_samples @ np.array([1 << 16, 1 << 8, 1])  # (N,), 8 bits for each channel
    _, first_indices, group_sizes = np.unique(group_numbers, return_index=True, return_counts=True)
    weights = np.ceil(np.sqrt(group_sizes)).astype(int)
    return np.repeat(samples[first_indices], weights, axis=0)


def _to_pillow(image: Pixels) -> Image.Image:
    """Return an image of Pillow with the same colours."""
    return Image.fromarray(np.ascontiguousarray(image[..., ::-1]))  # from BGR to RGB


def _changed_indices(frames: Sequence[LoopFrame], palette: bytes) -> Iterator[PaletteIndices]:
    """Yield for each frame the index in the palette of each pixel's colour.

    In the second frame and all later ones, pixels whose colour stays have the index `UNCHANGED`,
    which takes few bytes. A pixel that hardly differs from what is shown keeps its colour, since
    that is noise: it would take most of the bytes, and flicker.

    Args:
        frames: The frames of the loop.
        palette: Red, green and blue of each colour, one after the other.
    """
    palette_image = Image.new("P", (1, 1))
    palette_image.putpalette(palette[: 3 * COLOUR_COUNT])
    shown_pixels = frames[0].pixels
    shown_indices: PaletteIndices | None = None
    for frame in frames:
        difference = cv2.absdiff(frame.pixels, shown_pixels).max(axis=2, keepdims=True)
        shown_pixels = np.where(difference > STILL, frame.pixels, shown_pixels)
        quantized = _to_pillow(shown_pixels).quantize(
            palette=palette_image, dither=Image.Dither.NONE
        )
        indices = np.asarray(quantized)
        if shown_indices is None:
            yield indices
        else:
            yield np.where(indices == shown_indices, np.uint8(UNCHANGED), indices)
        shown_indices = indices
