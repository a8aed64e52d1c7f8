"""Videos to write, and to read back."""

import struct
from fractions import Fraction
from types import SimpleNamespace

import cv2
import numpy as np
from sample_records import FILM, Film, frame

from detcli.sink.frame_clock import LIVE_RATE

DOOR, YARD = Film("camera:0", 0.0, live=True), Film("camera:1", 0.0, live=True)

SIGNAL_S = 0.2
"""How long the images are bright and a tone is heard."""

SMALL, LARGE = (48, 64), (96, 128)
"""Height and width of the tracks of a video."""

CODECS = {"avi": "mpeg4", "wmv": "wmv2", "webm": "libvpx"}
"""For `record_sizes`, by the suffix of the file; others take H.264."""


def play(path):
    """The shades of a video's frames, its rate and its size as (height, width)."""
    # Names that are no Unicode crash OpenCV.
    link = path.with_name("link.mp4")
    link.symlink_to(path.name)
    video = cv2.VideoCapture(str(link))
    link.unlink()
    assert video.isOpened(), path
    shades = []
    while True:
        has_frame, pixels = video.read()
        if not has_frame:
            break
        shades.append(round(float(pixels.mean())))
        size = pixels.shape[:2]
    rate = video.get(cv2.CAP_PROP_FPS)
    assert len(shades) == video.get(cv2.CAP_PROP_FRAME_COUNT)
    return SimpleNamespace(shades=shades, rate=rate, size=size)


def film(count, film=FILM, step=10):
    """Frames that become brighter."""
    return [frame(number, film, number * step) for number in range(count)]


def live_frames(times, film=DOOR, step=20):
    """Frames of a camera, at these frames of the video."""
    frames = []
    for number, time in enumerate(times):
        frames.append(frame(number, film, number * step, time_s=time / LIVE_RATE))
    return frames


def record_film(path, times, *, sound="aac", signal_s=1.0, **options):
    """Write a video with frames at these times, dark but for a signal that is heard as well."""
    import av

    height, width = options.get("size", (48, 64))
    rate = options.get("rate", 48_000)
    with av.open(str(path), "w") as output:
        video = output.add_stream(options.get("codec", "libx264"), rate=25)
        video.height = height
        video.width = width
        video.pix_fmt = "yuv420p"
        video.codec_context.time_base = Fraction(1, options.get("ticks", 1000))
        video.codec_context.gop_size = options.get("group", 250)  # frames for each key frame
        video.codec_context.max_b_frames = options.get("reordered", 3)
        track = None
        if sound is not None:
            track = output.add_stream(sound, rate=rate, layout=options.get("layout", "mono"))
        packets = []
        for time_s in times:
            shade = 220 if signal_s <= time_s < signal_s + SIGNAL_S else 20
            pixels = np.full((height, width, 3), shade, np.uint8)
            image = av.VideoFrame.from_ndarray(pixels, "rgb24")
            image.time_base = video.codec_context.time_base
            image.pts = round(time_s / image.time_base)
            packets += video.encode(image)
        packets += video.encode(None)
        if track is not None:
            for heard in tones(options.get("sound_s", times[-1] + 0.04), signal_s, rate):
                packets += track.encode(heard)
            packets += track.encode(None)
        output.mux(sorted(packets, key=lambda packet: packet.dts * packet.time_base))
    return path


def tones(end_s, signal_s, rate):
    """Frames of sound: silence, and a tone while the signal lasts."""
    import av

    times = np.arange(round(end_s * rate)) / rate
    heard = (times >= signal_s) & (times < signal_s + SIGNAL_S)
    samples = (np.sin(2 * np.pi * 440 * times) * heard * 20_000).astype(np.int16)
    for start in range(0, len(samples), 1024):
        sound = av.AudioFrame.from_ndarray(samples[None, start : start + 1024], "s16", "mono")
        sound.sample_rate, sound.pts, sound.time_base = rate, start, Fraction(1, rate)
        yield sound


def watch(path):
    """A video as FFmpeg has it: times and shades of frames, the signal seen and heard."""
    import av

    times, shades, seen_s, heard_s, end_s = [], [], None, None, None
    with av.open(str(path)) as file:
        video = file.streams.video[0]
        context = video.codec_context
        for decoded in file.decode(video):
            pixels = decoded.to_ndarray(format="gray")
            times.append(float(decoded.pts * decoded.time_base))
            shades.append(round(float(pixels.mean())))
            rotation = decoded.rotation
            if seen_s is None and shades[-1] > 128:
                seen_s = times[-1]
        codec, size, pixels = (
            context.codec.canonical_name,
            (context.height, context.width),
            context.pix_fmt,
        )
        colours = context.colorspace
        length_s = float(
            video.duration * video.time_base if video.duration else file.duration / av.time_base
        )
    track, packets = None, []
    with av.open(str(path)) as file:
        if file.streams.audio:
            track = file.streams.audio[0].codec_context.codec.canonical_name
            for packet in file.demux(file.streams.audio[0]):
                packets += [bytes(packet)] * bool(packet.size)
                for decoded in packet.decode():
                    start_s = float(decoded.pts * decoded.time_base)
                    end_s = start_s + decoded.samples / decoded.sample_rate  # type: ignore[attr-defined]
                    loud_samples = np.flatnonzero(loudness(decoded) > 0.2)
                    if heard_s is None and len(loud_samples):
                        heard_s = start_s + loud_samples[0] / decoded.sample_rate  # type: ignore[attr-defined]
    return SimpleNamespace(
        times=times,
        shades=shades,
        codec=codec,
        size=size,
        pixels=pixels,
        colours=colours,
        rotation=rotation,
        length_s=length_s,
        sound=track,
        packets=packets,
        seen_s=seen_s,
        heard_s=heard_s,
        heard_until_s=end_s,
    )


def loudness(sound):
    """The largest of all channels for each sample, from 0 to 1."""
    samples = sound.to_ndarray().astype(float)
    if not sound.format.is_planar:
        samples = samples.reshape(-1, sound.layout.nb_channels).T
    match sound.format.name[:2]:
        case "u8":
            samples = (samples - 128) / 128
        case "s1":
            samples /= 1 << 15
    return np.abs(samples).max(axis=0)


def rotate(path, matrix=(0, 1, -1, 0), box=b"tkhd", *, last=False):
    """Say in an MP4's track that it is to be shown turned, by 90 degrees unless said otherwise."""
    data = bytearray(path.read_bytes())
    at = (data.rindex if last else data.index)(box) + 4
    first = at + (52 if data[at] else 40) - (4 if box == b"mvhd" else 0)
    a, b, c, d = [round(part * (1 << 16)) for part in matrix]
    struct.pack_into(">9i", data, first, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def remux(path, suffix):
    """The same packets in another container, with the same display matrix."""
    import av

    with av.open(str(path)) as source, av.open(str(path.with_suffix(suffix)), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    return path.with_suffix(suffix)


def edit_list(path, edits):
    """Give the first track of an MP4 these edits, each a start (None for a pause) and a duration.

    Both are in seconds. What holds the tracks has to be at the end of the file.
    """
    data = bytearray(path.read_bytes())
    movie_scale = struct.unpack_from(">I", data, data.index(b"mvhd") + 16)[0]
    media_scale = struct.unpack_from(">I", data, data.index(b"mdhd") + 16)[0]
    entries = b""
    for start_s, duration_s in edits:
        start = -1 if start_s is None else round(start_s * media_scale)
        entries += struct.pack(">Iihh", round(duration_s * movie_scale), start, 1, 0)
    at = data.index(b"elst") - 4
    old_size = struct.unpack_from(">I", data, at)[0]
    box = struct.pack(">I4sII", 16 + len(entries), b"elst", 0, len(edits)) + entries
    data[at : at + old_size] = box
    for kind in (b"edts", b"trak", b"moov"):
        position = data.rindex(kind, 0, at + 4) - 4
        size = struct.unpack_from(">I", data, position)[0]
        struct.pack_into(">I", data, position, size + len(box) - old_size)
    path.write_bytes(data)
    return path


def record_sizes(path, sizes, *, codec="libx264", frames=(25, 50), options=None, default=None):
    """Write a video with a track for each of these sizes (height, width) and numbers of frames."""
    import av

    with av.open(str(path), "w", options=options or {}) as output:
        tracks = []
        for index, (height, width) in enumerate(sizes):
            track = output.add_stream(codec, rate=25)
            track.height, track.width, track.pix_fmt = height, width, "yuv420p"
            if index == default:
                track.disposition = av.stream.Disposition.default.value
            tracks.append(track)
        packets = []
        for track, count in zip(tracks, frames, strict=False):
            for number in range(count):
                noise = np.random.default_rng(number)
                pixels = noise.integers(0, 256, (track.height, track.width, 3), np.uint8)
                image = av.VideoFrame.from_ndarray(pixels, "rgb24")
                image.pts, image.time_base = number, Fraction(1, 25)
                packets += track.encode(image)
            packets += track.encode(None)
        output.mux(sorted(packets, key=lambda packet: packet.dts * packet.time_base))
    return path


def add_cover(path, image):
    """Put a cover image into an MP4, before its tracks; these have to be at the end of the file."""
    data = bytearray(path.read_bytes())
    moov = data.rindex(b"moov") - 4
    size = struct.unpack_from(">I", data, moov)[0]
    track = data.index(b"trak", moov) - 4
    cover = _box(b"covr", _box(b"data", struct.pack(">II", 13, 0) + image))
    handler = _box(b"hdlr", bytes(8) + b"mdirappl" + bytes(9))
    metadata = _box(b"udta", _box(b"meta", bytes(4) + handler + _box(b"ilst", cover)))
    struct.pack_into(">I", data, moov, size + len(metadata))
    data[track:track] = metadata
    path.write_bytes(data)
    return path


def _box(kind, content):
    return struct.pack(">I4s", 8 + len(content), kind) + content
