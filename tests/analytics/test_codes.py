"""What symbols say, held against what was written into them."""

import base64
import json
from dataclasses import replace

import cv2
import numpy as np
import optional
import pytest
import zxingcpp
from json_lines import column_of
from sample_records import failure, feed, image

from detcli.analytics import Watcher, codes, markers, track_texts
from detcli.config.config import Settings
from detcli.config.watched import Watched
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import Record
from detcli.sink.draw import Style, annotate
from detcli.sink.image import Anonymizer
from detcli.sink.text import CsvSink
from detcli.storage.files import AtomicFile

pytestmark = pytest.mark.slow

NAMES = ("qr_code", "micro_qr", "data_matrix", "barcode", "pdf417", "aruco", "aztec")
WAYS = {
    "QRCode": ("qr_code", "QR Code"),
    "MicroQRCode": ("micro_qr", "Micro QR Code"),
    "DataMatrix": ("data_matrix", "Data Matrix"),
    "Aztec": ("aztec", "Aztec"),
    "PDF417": ("pdf417", "PDF417"),
    "Code128": ("barcode", "Code 128"),
}
OPTIONAL = ["text", "symbology", "bytes", "doubt", "earlier", "corners"]


def symbol(content, way="QRCode", module=4):
    """A symbol, black on white, without a quiet zone."""
    barcode = zxingcpp.create_barcode(content, getattr(zxingcpp.BarcodeFormat, way))
    cells = np.array(zxingcpp.write_barcode_to_image(barcode, scale=1, add_quiet_zones=False))
    if cells.shape[0] < 8:  # a bar code is drawn as one line
        cells = np.repeat(cells[:1], 30, 0)
    return np.kron(cells, np.ones((module, module), np.uint8))


def marker(dictionary, number, side=60):
    """A marker with a white border."""
    opencv_dictionary = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, dictionary))
    return cv2.aruco.generateImageMarker(opencv_dictionary, number, side)


def put(canvas, drawn, left, top):
    """Draw a symbol, with white around it; returns its box."""
    height, width = drawn.shape
    canvas[max(0, top - 20) : top + height + 20, max(0, left - 20) : left + width + 20] = 255
    canvas[top : top + height, left : left + width] = drawn[:, :, None]
    return [left, top, left + width, top + height]


def canvas(height=400, width=600):
    """A grey image to put symbols on."""
    return np.full((height, width, 3), 170, np.uint8)


def put_symbols(pixels, texts_of_symbols):
    """Put symbols of texts side by side, and return their boxes."""
    boxes = []
    for number, text in enumerate(texts_of_symbols):
        boxes.append(put(pixels, symbol(text), 60 + 260 * number, 100))
    return boxes


def confirmed_count(detections):
    """How many detections are confirmed by what was read."""
    return sum(row.get("confirmed", False) for row in detections)


def record_of(pixels, boxes=(), classes=(), names=NAMES):
    """A record of an image in which something was detected."""
    detections = Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.linspace(0.9, 0.5, len(boxes), dtype=np.float32),
        np.array([names.index(name) for name in classes], np.int64),
        names,
    )
    return replace(image(), picture=Image.whole(pixels), detections=detections)


def read(record, settings=None):
    """The record with symbols."""
    return Watcher(Watched(read=True), settings)(record)


def rows(record):
    return record.to_json()["detections"]


def texts(record):
    """What the detections say."""
    return column_of(rows(record), "text")


def one_of(content, class_name="qr_code", drawn=None):
    """An image with one symbol that was detected, and its corners."""
    if drawn is None:
        drawn = symbol(content)
    pixels = canvas()
    box = put(pixels, drawn, 100, 120)
    left, top, right, bottom = box
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
    return record_of(pixels, [box], [class_name]), corners


@pytest.mark.parametrize("way", WAYS)
def test_each_kind_is_read(way):
    class_name, symbology = WAYS[way]
    record, corners = one_of("", class_name, symbol("12345", way))
    (row,) = rows(read(record))
    assert row["text"] == "12345"
    assert row["symbology"] == symbology
    assert row["class_name"] == class_name
    assert "bytes" not in row
    tolerance = [12, 60] if way == "Code128" else 6  # of bars, one line is the position
    assert (np.abs(np.array(row["corners"]) - corners) <= tolerance).all()


def test_each_detection_gets_its_own_text():
    pixels = canvas(400, 900)
    boxes = put_symbols(pixels, ["0", "1", "2"])
    assert texts(read(record_of(pixels, boxes[::-1], ["qr_code"] * 3))) == ["2", "1", "0"]


def test_what_only_reading_finds_is_a_detection_too():
    pixels = canvas(400, 900)
    detected = put(pixels, symbol("0"), 60, 100)
    undetected = put(pixels, symbol("1"), 460, 100)
    record = read(record_of(pixels, [detected], ["qr_code"]))
    assert texts(record) == ["1", "0"]
    assert record.detections.score.tolist() == pytest.approx([1, 0.9])
    assert np.abs(record.detections.xyxy[0] - undetected).max() <= 6
    assert texts(read(record_of(pixels, [[0, 0, 9, 9]], ["cat"], names=("cat",)))) == [None]


@pytest.mark.parametrize(
    ("settings", "boxes", "expected"),
    [
        (Settings(classes=("aztec",)), 1, ["0", "2"]),
        (Settings(classes=(0, "aztec")), 1, ["0", "1", "2"]),
        (Settings(max_det=1), 1, ["0"]),
        (Settings(max_det=2), 1, ["0", "1"]),
        (Settings(max_det=2), 3, ["0", "1", "2", None, None]),  # of tiles, each may have two
    ],
)
def test_what_only_reading_finds_obeys_the_settings(settings, boxes, expected):
    pixels = canvas(400, 1200)
    detected = put(pixels, symbol("0", "QRCode"), 60, 100)
    put(pixels, symbol("1", "QRCode"), 460, 100)
    put(pixels, symbol("2", "Aztec"), 860, 100)
    empty = [[0, 9 * n, 9, 9 * n + 9] for n in range(boxes - 1)]
    record = record_of(pixels, [detected] + empty, ["qr_code"] * boxes)
    assert sorted(texts(read(record, settings)), key=str) == expected


def test_nothing_is_read_where_nothing_is():
    record = read(
        record_of(canvas(), [[10, 10, 200, 200], [590, 390, 700, 500]], ["qr_code", "aruco"])
    )
    assert rows(record)[0] == {
        "class_id": 0,
        "class_name": "qr_code",
        "score": 0.9,
        "x1": 10,
        "y1": 10,
        "x2": 200,
        "y2": 200,
        "text": None,
    }
    assert texts(record) == [None, None]
    torn = failure()
    assert read(torn) is torn
    assert texts(read(record_of(canvas()))) == []


def test_a_tilted_bar_code_is_turned_upright():
    pixels = canvas(700, 700)
    put(pixels, symbol("AB-4711", "Code128", 2), 250, 320)
    turn = cv2.getRotationMatrix2D((350, 350), 31, 1)
    tilted = cv2.warpAffine(pixels, turn, (700, 700), borderValue=(170, 170, 170))
    assert zxingcpp.read_barcodes(tilted) == []
    (row,) = rows(read(record_of(tilted, [[230, 220, 470, 480]], ["barcode"])))
    assert row["text"] == "AB-4711"
    top_left, top_right, _, _ = np.array(row["corners"])
    across, down = top_right - top_left
    slope = np.degrees(np.arctan2(down, across))
    assert abs((slope + 31 + 90) % 180 - 90) < 3


def test_a_small_symbol_in_a_large_image_is_enlarged():
    pixels = canvas(1500, 2000)
    large = np.pad(symbol("small", module=8), 80, constant_values=255)
    small = cv2.resize(large, None, fx=0.17, fy=0.17, interpolation=cv2.INTER_AREA)
    small = cv2.GaussianBlur(small, (0, 0), 0.55)
    height, width = small.shape
    pixels[801 : 801 + height, 1203 : 1203 + width] = small[:, :, None]
    assert zxingcpp.read_barcodes(pixels) == []
    box = [1203 + 13, 801 + 13, 1203 + width - 13, 801 + height - 13]
    (row,) = rows(read(record_of(pixels, [box], ["qr_code"])))
    assert row["text"] == "small"
    assert np.abs(np.array(row["corners"])[0] - box[:2]).max() < 2


@pytest.mark.parametrize(
    ("number", "drawn_from", "dictionary"),
    [
        (7, "4X4_50", "4X4_50"),
        (60, "4X4_1000", "4X4_100"),  # it is said which is the smallest
        (200, "5X5_250", "5X5_250"),
        (999, "6X6_1000", "6X6_1000"),
        (580, "APRILTAG_36h11", "APRILTAG_36h11"),
        (29, "APRILTAG_16h5", "APRILTAG_16h5"),
        (1000, "ARUCO_ORIGINAL", "ARUCO_ORIGINAL"),
    ],
)
def test_markers_are_numbers_of_a_dictionary(number, drawn_from, dictionary):
    record, corners = one_of("", "aruco", marker(f"DICT_{drawn_from}", number))
    inverse = Image.whole(255 - record.picture.pixels)
    for with_marker in (record, replace(record, picture=inverse)):
        (row,) = rows(read(with_marker))
        assert row["text"] == str(number)
        assert row["symbology"] == f"DICT_{dictionary}"
        assert np.abs(np.array(row["corners"]) - corners).max() < 2


def test_a_dictionary_is_the_smallest_that_has_the_marker():
    """OpenCV's dictionaries of a kind begin with the same markers."""
    for cells in (4, 5, 6, 7):
        largest = markers_of(f"DICT_{cells}X{cells}_{markers.SIZES[-1]}")
        for size in markers.SIZES:
            markers_of_size = markers_of(f"DICT_{cells}X{cells}_{size}")
            assert len(markers_of_size) == size
            assert np.array_equal(markers_of_size, largest[:size])


def markers_of(dictionary):
    """The bits of all markers of a dictionary of OpenCV."""
    return cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, dictionary)).bytesList


@pytest.mark.parametrize("way", ["QRCode", "PDF417", "DataMatrix"])
def test_separators_do_not_make_a_text_binary(way):
    content = "@\n\x1e\rANSI \x1f 62é\x1dEnd\x1e\x04"
    record, _ = one_of("", WAYS[way][0], symbol(content.encode(), way))
    (row,) = rows(read(record))
    assert row["text"] == content
    assert ("bytes" in row) is False
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize("content", [bytes(range(128, 160)), b"abc\0", b"\x1b[2J"])
def test_content_that_is_no_text_is_in_base64(content):
    (row,) = rows(read(one_of(content)[0]))
    assert row["text"] is None
    assert base64.b64decode(row["bytes"]) == content


HOSTILE = "=1+1\u202e\n<script>alert(1)</script>"


def test_hostile_text_is_harmless(tmp_path):
    pixels = canvas()
    box = put(pixels, symbol(HOSTILE), 100, 120)
    record = read(record_of(pixels, [box, [0, 0, 50, 50]], ["qr_code"] * 2))
    assert texts(record) == [HOSTILE, None]
    assert json.loads(json.dumps(rows(record)))[0]["text"] == HOSTILE
    feed(CsvSink(AtomicFile(tmp_path / "a.csv"), OPTIONAL), record)
    head, first, second = (tmp_path / "a.csv").read_text().splitlines()
    assert head.endswith(",text,symbology,bytes,doubt,earlier,corners")
    assert "'=1+1\\u202e\\n<script>alert(1)</script>,QR Code,," in first
    assert second.endswith(",,,,,,")


@optional.needs("pyarrow")
def test_parquet_tells_what_was_not_read_from_what_was_not_asked(tmp_path):
    pyarrow_parquet = optional.require("pyarrow.parquet")
    from detcli.sink import parquet

    pixels = canvas(500, 900)
    boxes = [
        put(pixels, symbol("text"), 60, 100),
        put(pixels, symbol(b"\xff\xfe\x80" * 4), 500, 100),
    ]
    record = read(record_of(pixels, boxes + [[0, 300, 50, 350]], ["qr_code"] * 3))
    assert texts(record) == ["text", None, None]
    feed(parquet.ParquetSink(AtomicFile(tmp_path / "read"), OPTIONAL), record)
    rows = pyarrow_parquet.read_table(tmp_path / "read").to_pylist()
    assert len(rows) == 3
    for row, detection in zip(rows, record.to_json()["detections"], strict=True):
        for name in ("text", "symbology", "bytes", "doubt", "earlier"):
            assert row[name] == detection.get(name), name
        # A list is null where --read asked for no text, and empty where a text was not read.
        assert row["corners"] == detection.get("corners", [])
    feed(parquet.ParquetSink(AtomicFile(tmp_path / "unread"), []), record_of(pixels))
    assert not {"text", "corners"} & set(
        pyarrow_parquet.read_table(tmp_path / "unread").column_names
    )


def test_labels_in_images_say_it():
    record = read(one_of("on the label")[0])
    pixels = record.picture.pixels
    (barcode,) = record.detections.symbols
    without_text = replace(
        record.detections, symbols=np.array([replace(barcode, text=None)], object)
    )
    for style, hides_text in ((Style(), False), (Style(label_parts=frozenset()), True)):
        with_label = annotate(pixels, record.detections, style)
        without_label = annotate(pixels, without_text, style)
        assert np.array_equal(with_label, without_label) == hides_text


def test_a_hidden_symbol_says_nothing():
    pixels = canvas(400, 900)
    boxes = [put(pixels, symbol("hidden"), 60, 100), put(pixels, symbol("open", "Aztec"), 500, 100)]
    record = read(record_of(pixels, boxes, ["qr_code", "aztec"]))
    assert texts(Anonymizer([0], "fill")(record)) == [None, "open"]
    assert texts(record) == ["hidden", "open"]


def test_records_without_reading_are_as_they_were():
    record = record_of(canvas(), [[1, 2, 30, 40]], ["qr_code"])
    assert isinstance(record, Record)
    assert "text" not in rows(record)[0]
    assert Watcher(Watched())(record) is record


def watch(record, conf=0.5):
    """The rows that reading leaves where detections must exceed a confidence."""
    step = Watcher(Watched(read=True), conf_thresholds=np.full(len(NAMES), conf, np.float32))
    return rows(step(record))


def test_below_the_confidence_only_what_is_read_counts():
    pixels = canvas(400, 900)
    boxes = put_symbols(pixels, ["0", "1"])
    record = record_of(pixels, boxes + [[600, 100, 800, 300]], ["qr_code"] * 3)
    below = watch(record, 0.95)
    assert column_of(below, "text") == ["0", "1"]
    assert column_of(below, "score") == [1, 1]
    assert column_of(below, "confirmed") == [True, True]
    assert [below[0]["x1"], below[0]["y1"]] == boxes[0][:2]  # of the detector
    above = watch(record, 0.1)
    assert column_of(above, "text") == ["0", "1", None]
    for row in above:
        assert "confirmed" not in row
    mistaken = record_of(pixels, boxes, ["aztec"] * 2)
    assert set(column_of(watch(mistaken, 0.95), "class_name")) == {"qr_code"}


def test_a_symbol_in_a_spot_of_light_is_read():
    """Exposed so that its light and dark differ by less than its own shading."""
    pixels = canvas(500, 500)
    box = put(pixels, symbol("uneven", module=6), 150, 150)
    shade = np.linspace(60, 230, 500)[None, :, None] - np.linspace(0, 40, 500)[:, None, None]
    faint = (shade + (pixels.astype(float) - 128) / 128 * 7).clip(0, 255).astype(np.uint8)
    assert zxingcpp.read_barcodes(faint) == []
    assert texts(read(record_of(faint, [box], ["qr_code"]))) == ["uneven"]


def test_markers_of_a_board_that_were_not_detected_are_added():
    pixels = canvas(400, 900)
    boxes = [put(pixels, marker("DICT_5X5_1000", n), 60 + 160 * n, 100) for n in range(5)]
    markers = rows(read(record_of(pixels, boxes[:1], ["aruco"])))
    assert sorted(column_of(markers, "text")) == ["0", "1", "2", "3", "4"]
    assert confirmed_count(markers) == 4


@pytest.mark.parametrize(
    ("dictionary", "side", "added"),
    [("4X4_50", 6, 1), ("4X4_50", 5.9, 0), ("ARUCO_ORIGINAL", 6.9, 0), ("ARUCO_ORIGINAL", 7, 1)],
)
def test_no_marker_of_fewer_pixels_than_modules_is_added(dictionary, side, added, monkeypatch):
    corners = np.array([[0, 0], [side, 0], [side, side], [0, side]]) + 50
    small = codes.Barcode("23", f"DICT_{dictionary}", b"", corners, "aruco")
    monkeypatch.setattr(codes, "read_markers", lambda *_: iter([small]))
    markers = rows(read(record_of(canvas(), [[200, 200, 300, 300]], ["aruco"])))
    assert confirmed_count(markers) == added


@pytest.mark.parametrize(
    ("way", "content", "doubt"),
    [
        ("Code39", "AB12", True),
        ("ITF", "123456", True),
        ("Codabar", "A1234B", True),
        ("EAN13", "4006381333931", False),
        ("Code128", "AB12", False),
        ("QRCode", "AB12", False),
    ],
)
def test_readings_that_nothing_checks_are_in_doubt(way, content, doubt):
    class_name = "qr_code" if way == "QRCode" else "barcode"
    (row,) = rows(read(one_of("", class_name, symbol(content, way, 3))[0]))
    assert row["text"] is not None
    assert row.get("doubt", False) == doubt


def spoilt(way):
    """A symbol of a class that is there but cannot be read."""
    random = np.random.default_rng(3)
    if way == "aruco":
        cells = np.pad(random.integers(0, 2, (4, 4), np.uint8) * 255, 1)
        return np.kron(cells, np.ones((12, 12), np.uint8))
    if way == "barcode":
        bars = np.repeat(symbol("4006381333931", "Code128", 2)[:1], 100, 0)
        return cv2.GaussianBlur(np.pad(bars, 20, constant_values=255), (0, 0), 2.4)[20:-20, 20:-20]
    drawn = symbol("12345", module=6)
    drawn[8 * 6 :, 7 * 6 : 14 * 6] = 255
    return drawn


@pytest.mark.parametrize(("way", "near"), [("qr_code", 8), ("barcode", 28), ("aruco", 8)])
def test_what_cannot_be_read_has_corners_where_it_is_located(way, near):
    record, corners = one_of("", way, spoilt(way))
    (row,) = rows(read(record))
    assert row["text"] is None
    assert ("symbology" in row) is False
    distances = np.linalg.norm(np.array(row["corners"])[:, None] - corners, axis=2)
    assert distances.min(0).max() < near
    if way != "aruco":
        assert distances.trace() < 4 * near  # in their order
    (row_of_nothing,) = rows(read(replace(record, picture=Image.whole(canvas()))))
    assert "corners" not in row_of_nothing


def test_bars_that_a_closer_look_contradicts_do_not_count(monkeypatch):
    record, _ = one_of("", "barcode", symbol("4006381333931", "EAN13", 3))
    readings = []
    right = codes.read

    def wrong_at_first(*arguments, **options):
        for barcode in right(*arguments, **options):
            readings.append(barcode)
            if len(readings) == 1:
                yield replace(barcode, text="0", content=b"0")
            else:
                yield barcode

    monkeypatch.setattr(codes, "read", wrong_at_first)
    assert texts(read(record)) == ["4006381333931"]


def test_a_track_keeps_its_text():
    frames = [one_of("on a track")[0], record_of(canvas(), [[100, 120, 200, 220]], ["qr_code"])]
    step = track_texts.TrackTexts()
    detections = []
    for number, track in enumerate((7, 7, 8, -1)):
        record = tracked(read(frames[min(number, 1)]), number, track)
        detections += rows(step.add(record, record.picture, record.detections))
    assert column_of(detections, "text") == ["on a track", "on a track", None, None]
    assert [row.get("earlier") for row in detections] == [None, True, None, None]
    assert "corners" not in detections[1]


def tracked(record, number, *tracks):
    """The record as a frame of a video, whose detections have these tracks."""
    return replace(
        record,
        origin=replace(record.origin, frame=number),
        detections=replace(record.detections, track_id=np.array(tracks)),
    )


def blank(count=1):
    """An image with detections in which nothing can be read."""
    boxes = []
    for left in range(100, 100 + 110 * count, 110):
        boxes.append([left, 120, left + 100, 220])
    return record_of(canvas(), boxes, ["qr_code"] * count)


def texts_of_frames(step, frames):
    """What the symbols of frames say, each frame a list."""
    return [texts(step.add(frame, frame.picture, frame.detections)) for frame in frames]


def test_a_symbol_without_a_track_never_gets_the_text_of_another():
    without_track = -1
    first = tracked(read(one_of("of the first")[0]), 0, without_track)
    second = tracked(read(blank()), 1, without_track)
    assert texts_of_frames(track_texts.TrackTexts(), [first, second]) == [["of the first"], [None]]


def test_two_symbols_without_a_track_in_a_frame_keep_to_themselves():
    pixels = canvas()
    boxes = [put(pixels, symbol("readable"), 60, 100), [400, 100, 500, 200]]
    frame = tracked(read(record_of(pixels, boxes, ["qr_code"] * 2)), 0, -1, -1)
    assert texts_of_frames(track_texts.TrackTexts(), [frame]) == [["readable", None]]


def test_a_track_gets_its_own_text_in_whichever_order_its_boxes_come():
    pixels = canvas(400, 900)
    boxes = [put(pixels, symbol("one"), 60, 100), put(pixels, symbol("two"), 500, 100)]
    first = tracked(read(record_of(pixels, boxes, ["qr_code"] * 2)), 0, 4, 9)
    second = tracked(read(blank(3)), 1, 9, -1, 4)
    assert texts_of_frames(track_texts.TrackTexts(), [first, second])[1] == ["two", None, "one"]


def test_a_track_says_what_it_said_last():
    first = tracked(read(one_of("old")[0]), 0, 7)
    second = tracked(read(one_of("new")[0]), 1, 7)
    last = tracked(read(blank()), 2, 7)
    assert texts_of_frames(track_texts.TrackTexts(), [first, second, last])[2] == ["new"]


def test_a_track_keeps_its_text_for_more_than_one_frame():
    first = tracked(read(one_of("lasting")[0]), 0, 7)
    later = [tracked(read(blank()), number, 7) for number in range(1, 4)]
    assert texts_of_frames(track_texts.TrackTexts(), [first] + later) == [["lasting"]] * 4


def test_a_symbol_that_is_only_located_does_not_make_its_track_forget():
    spoilt_record, _ = one_of("", "qr_code", spoilt("qr_code"))
    readable = tracked(read(one_of("known")[0]), 0, 7)
    located = tracked(read(spoilt_record), 1, 7)
    without_symbol = tracked(read(blank()), 2, 7)
    assert located.detections.symbols[0] is not None
    frames = [readable, located, without_symbol]
    assert texts_of_frames(track_texts.TrackTexts(), frames) == [["known"]] * 3


def test_an_image_that_is_no_frame_has_no_track_to_ask():
    record = tracked(read(one_of("a photo")[0]), None, 7)
    step = track_texts.TrackTexts()
    assert step.add(record, record.picture, record.detections) is record


@pytest.mark.parametrize(("other_tracks", "text"), [(1, "remembered"), (2, None)])
def test_as_many_texts_are_remembered_as_there_is_room_for(monkeypatch, other_tracks, text):
    monkeypatch.setattr(track_texts, "REMEMBERED", 2)
    first = tracked(read(one_of("remembered")[0]), 0, 1)
    between = []
    for number in range(1, 1 + other_tracks):
        between.append(tracked(read(one_of("other")[0]), number, 1 + number))
    last = tracked(read(blank()), 9, 1)
    assert texts_of_frames(track_texts.TrackTexts(), [first] + between + [last])[-1] == [text]


@pytest.mark.parametrize(
    ("number", "size"),
    [(0, 50), (49, 50), (50, 100), (99, 100), (100, 250), (249, 250), (250, 1000), (999, 1000)],
)
def test_a_marker_at_the_end_of_a_dictionary_belongs_to_it(number, size):
    """A dictionary of 50 has the numbers 0 to 49."""
    record, _ = one_of("", "aruco", marker("DICT_5X5_1000", number))
    (row,) = rows(read(record))
    assert row["text"] == str(number)
    assert row["symbology"] == f"DICT_5X5_{size}"


@pytest.mark.parametrize("number", [50, 100, 250])
def test_a_marker_is_of_the_smallest_dictionary_of_opencv_that_draws_it(number):
    """OpenCV refuses to draw a marker that a dictionary has not."""
    _, _, size = markers._smallest_dictionary("DICT_4X4_1000", number).rpartition("_")  # noqa: SLF001
    drawable = []
    for candidate in markers.SIZES:
        try:
            marker(f"DICT_4X4_{candidate}", number)
        except cv2.error:
            continue
        drawable.append(candidate)
    assert int(size) == min(drawable)


def test_corners_are_drawn():
    record = read(one_of("drawn")[0])
    turned = replace(record.detections.symbols[0], corners=np.array(
        [[300, 50], [350, 100], [300, 150], [250, 100]], np.float64))  # fmt: skip
    moved = replace(record.detections, symbols=np.array([turned]))
    drawn = annotate(canvas(), moved, Style(label_parts=frozenset()))
    assert (drawn[75, 325] != 170).any()
    assert (drawn[100, 300] == 170).all()
