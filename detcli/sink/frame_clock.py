"""When the frames of a source are shown in its annotated video."""

from typing import NamedTuple

from detcli.data.record import Origin, Video

MIN_RATE = 1 / 3600  # frames per second; other rates are measurement errors
MAX_RATE = 1000.0
LIVE_RATE = 30.0  # frames per second of a live source, as it has no rate of its own
MAX_GAP_S = 10.0  # a live source that was away for longer is shown as if for this long
MAX_FRAME_S = 3600.0  # maximum time for which one frame of a file is shown; more is damage


class FrameTime(NamedTuple):
    """When a frame is shown, in seconds."""

    shown_s: float  # from the start of the first annotated video of the source
    source_s: float  # from the start of the source


class FrameClock:
    """Computes when each frame of a source is shown: at its time in the source, as far as it can.

    Attributes:
        rate: The frames per second of the source; `LIVE_RATE` where it has no usable rate.
    """

    def __init__(self, video: Video, *, is_constant_rate: bool) -> None:
        """Start the clock of a source: its first frame is shown at 0 s.

        Args:
            video: What is known about the source.
            is_constant_rate: Whether frames follow one another at the rate of the source, and their
                times in the source are ignored. Frames of a live source always keep their times.
        """
        self.rate = LIVE_RATE
        if MIN_RATE <= video.frames_per_second <= MAX_RATE:
            self.rate = video.frames_per_second
        self._is_live = video.live
        self._is_constant_rate = is_constant_rate and not video.live
        # The last frame that is shown: its time in the annotated video, and that in the source.
        self._last_shown_s = 0.0
        self._last_source_s: float | None = None  # None before the first frame

    def advance(self, origin: Origin) -> FrameTime | None:
        """Compute when the next frame is shown, and move the clock on to it.

        Returns:
            Its time; None for a frame of a live source that is not later than the one before it,
            which is not shown.
        """
        source_s = origin.time_s or 0.0
        if self._last_source_s is not None:
            interval_s = self._shown_interval_s(source_s - self._last_source_s)
            if interval_s is None:  # this frame is not shown
                return None
            self._last_shown_s += interval_s
        self._last_source_s = source_s
        return FrameTime(self._last_shown_s, source_s)

    def _shown_interval_s(self, source_interval_s: float) -> float | None:
        """Compute the time between two frames in the annotated video, in seconds.

        Args:
            source_interval_s: The time between them in the source; in a damaged file or a live
                source it may be negative, or very long.

        Returns:
            The time, which is limited; None if the second frame is not shown.
        """
        if self._is_live:
            if source_interval_s <= 0:
                return None
            return min(source_interval_s, MAX_GAP_S)
        if self._is_constant_rate or source_interval_s <= 0:
            return 1 / self.rate
        return min(source_interval_s, MAX_FRAME_S)
