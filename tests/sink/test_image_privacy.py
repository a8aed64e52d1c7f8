# mypy: disable-error-code=arg-type
"""What is hidden cannot be read, by any reader and at any size; and what is not kept."""

import csv
from dataclasses import replace

import cv2
import numpy as np
import pytest
import zxingcpp
from folders import names_in
from hypothesis import given, settings
from hypothesis import strategies as st
from json_lines import column_of
from origins import sources_of
from sample_records import failed_frame, failure, feed, feed_all, frame, image

from detcli import Detector
from detcli.config.values import Hiding
from detcli.data.barcode import Barcode
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import Origin, notes_of
from detcli.sink import image as image_module
from detcli.sink.dataset import DatasetSink
from detcli.sink.folder import OutputFolder
from detcli.sink.image import (
    GREY,
    SAMPLES,
    WAYS,
    Anonymizer,
    CropSink,
    HiddenTracks,
    OnlyDetections,
    WithoutRepeats,
    hidden,
    is_covered,
)

TEXT = "https://example.org/0123456789"
NAMES = ("secret", "public")


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def boxes(*rows):
    return np.array(rows, np.float32).reshape(-1, 4)


def whole_image(image):
    """A box around the whole of an image."""
    return boxes((0, 0, image.shape[1], image.shape[0]))


def readable(image):
    """What readers find in an image, at several sizes."""
    texts = []
    for scale in (0.25, 0.5, 1, 2, 4):
        height = max(8, round(image.shape[0] * scale))
        width = max(8, round(image.shape[1] * scale))
        if max(height, width) <= 1200:
            scaled = cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC)
            for code in zxingcpp.read_barcodes(scaled):
                texts.append(code.text)
            text, _, _ = cv2.QRCodeDetector().detectAndDecode(scaled)
            if text:
                texts.append(text)
    return texts


def qr_code(side):
    code = cv2.QRCodeEncoder.create().encode(TEXT)
    code = cv2.copyMakeBorder(code, 4, 4, 4, 4, cv2.BORDER_CONSTANT, value=255)
    grey = cv2.resize(code, (side, side), interpolation=cv2.INTER_NEAREST)
    return cv2.cvtColor(grey, cv2.COLOR_GRAY2BGR)


def test_each_way_to_hide_can_be_chosen():
    assert set(Hiding) == WAYS.keys()


@pytest.mark.parametrize("method", Hiding)
def test_only_the_box_and_its_margin_change(method):
    image = noise(100, 200)
    before = image.copy()
    result = hidden(image, boxes((50.5, 20.5, 99.5, 59.5)), method)
    np.testing.assert_array_equal(image, before)
    changed = (result != before).any(axis=2)
    rows = np.flatnonzero(changed.any(axis=1))
    columns = np.flatnonzero(changed.any(axis=0))
    assert columns[0] == 45
    assert columns[-1] == 104
    assert rows[0] == 16
    assert rows[-1] == 63
    assert changed[16:64, 45:105].mean() > 0.9


BOXES = [
    (-10, -10, 300, 300),
    (190, 90, 260, 130),
    (10, 10, 10, 10),
    (10.2, 10.2, 10.3, 10.3),
    (199.5, 99.5, 200, 100),
    (0, 0, 200, 1),
    (0, 0, 1, 100),
    (-50, -50, -10, -10),
    (-3e38, -3e38, 3e38, 3e38),
]


@pytest.mark.parametrize("method", WAYS)
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.filterwarnings("ignore:overflow")
def test_any_box_will_do(method, box):
    image = noise(100, 200)
    result = hidden(image, boxes(box), method)
    assert result.shape == image.shape
    detections = Detections(boxes(box), np.float32([1]), np.array([0]), ("a",))
    for left, top, right, bottom in detections.within((100, 200)).xyxy:
        inside = np.s_[int(top) : int(np.ceil(bottom)), int(left) : int(np.ceil(right))]
        if result[inside].size > 300:
            assert (result[inside] != image[inside]).mean() > 0.9


@settings(max_examples=25)
@given(st.integers(1, 90), st.integers(1, 90))
def test_few_colours_are_left(height, width):
    """Pixelated, there are 16 at most; and blurring tells nothing that pixelating does not."""
    image = noise(height, width)
    pixelated = hidden(image, whole_image(image), "pixelate")
    assert len(np.unique(pixelated.reshape(-1, 3), axis=0)) <= SAMPLES**2
    assert (hidden(image, whole_image(image), "fill") == GREY).all()


def test_a_filled_box_has_the_grey_of_a_letterbox():
    assert (hidden(noise(5, 5), boxes((0, 0, 5, 5)), "fill") == 114).all()


def test_a_box_of_fewer_pixels_than_colours_stays_as_it_is():
    image = noise(3, 3)
    np.testing.assert_array_equal(hidden(image, whole_image(image), "pixelate"), image)


@pytest.mark.parametrize("method", WAYS)
def test_pixels_that_change_places_within_a_part_are_not_noticed(method):
    """All that is left of a part is its mean."""
    image = noise(64, 64)
    shuffled = image.copy()
    for row in range(0, 64, 16):
        for column in range(0, 64, 16):
            part = shuffled[row : row + 16, column : column + 16]
            part[:] = np.random.default_rng(row).permutation(part.reshape(-1, 3)).reshape(16, 16, 3)
    assert (image != shuffled).mean() > 0.9
    box = whole_image(image)
    np.testing.assert_array_equal(hidden(image, box, method), hidden(shuffled, box, method))


@pytest.mark.parametrize("side", [100, 300, 1000])
def test_a_qr_code_that_is_not_hidden_can_be_read(side):
    assert set(readable(qr_code(side))) == {TEXT}


@pytest.mark.slow
@pytest.mark.parametrize("method", WAYS)
@pytest.mark.parametrize("side", [16, 40, 100, 300, 1000])
def test_a_qr_code_cannot_be_read(side, method):
    code = qr_code(side)
    assert readable(hidden(code, whole_image(code), method)) == []


@pytest.mark.parametrize("method", WAYS)
def test_the_face_of_a_person_cannot_be_told_from_another(method, shared):
    """A person's box is left with fewer colours than a face needs, see SAMPLES."""
    image = cv2.imread(str(shared("data/images/zidane.jpg")))
    person = (748, 40, 1147, 711)
    around_the_face = hidden(image, boxes(person), method)[100:300, 880:1080]
    reduced = cv2.resize(around_the_face, (SAMPLES, SAMPLES), interpolation=cv2.INTER_AREA)
    enlarged = cv2.resize(reduced, (200, 200), interpolation=cv2.INTER_LINEAR)
    assert np.abs(np.float32(enlarged) - around_the_face).mean() < 8
    assert cv2.Laplacian(around_the_face, cv2.CV_32F).std() < 6  # no edges


def secret(source="in/a.png", origin=None, *, classes=(0,)):
    """An image of noise whose first box, of the class `secret`, is its left half."""
    count = len(classes)
    xyxy = boxes((0, 0, 30, 40), (40, 5, 50, 15))[:count]
    scores = np.full(count, 0.5, np.float32)
    detections = Detections(xyxy, scores, np.array(classes, np.int64), NAMES)
    pixels = Image.whole(noise(40, 60))
    record = replace(image(source), picture=pixels, detections=detections)
    if origin is not None:
        record = replace(record, origin=origin)
    return record


class RecordList(list):
    """A sink that keeps records."""

    closed = False
    write = list.append

    def close(self):
        self.closed = True


def test_the_image_hides_and_the_record_stays():
    anonymize = Anonymizer([0], "fill")
    record = secret(classes=(0, 1))
    anonymous = anonymize(record)
    assert (anonymous.picture.pixels[:, :33] == GREY).all()
    np.testing.assert_array_equal(anonymous.picture.pixels[:, 33:], record.picture.pixels[:, 33:])
    assert anonymous.to_json() == record.to_json()
    assert notes_of(anonymous).saved is notes_of(record).saved


def test_a_record_without_these_classes_shows_the_same_pixels():
    anonymize = Anonymizer([0], "fill")
    for record in (secret(classes=(1,)), image(count=0)):
        assert anonymize(record).picture.pixels is record.picture.pixels
    for record in (failure(), failed_frame(1)):
        assert anonymize(record) is record


@pytest.mark.parametrize(
    ("classes", "says_first", "says_second"), [({0, 1}, False, False), ({1}, True, False)]
)
def test_all_hidden_classes_are_and_what_their_symbols_say(classes, says_first, says_second):
    first = symbol_at("one", 15, 20)
    second = symbol_at("two", 45, 10)
    symbols = np.array([first, second], object)
    detections = replace(secret(classes=(0, 1)).detections, symbols=symbols)
    anonymous = Anonymizer(classes, "fill")(replace(secret(), detections=detections))
    pixels = anonymous.picture.pixels
    assert anonymous.detections.symbols[0] is (first if says_first else None)
    assert (pixels[20, 10] == GREY).all() == (not says_first)
    assert anonymous.detections.symbols[1] is (second if says_second else None)
    assert (pixels[10, 45] == GREY).all() == (not says_second)
    assert symbols.tolist() == [first, second]  # the record is others' too


def symbol_at(text, x, y):
    """A symbol whose middle is at a point; it says a text."""
    corners = np.array([[x - 2, y - 2], [x + 2, y - 2], [x + 2, y + 2], [x - 2, y + 2]], float)
    return Barcode(text, "QR Code", text.encode(), corners, "secret")


def texts_left(record, anonymize):
    return column_of(anonymize(record).to_json()["detections"], "text")


def test_a_symbol_in_a_hidden_box_says_nothing_whatever_has_read_it():
    """A QR Code on a page of a book is read for both, and two classes may have one box."""
    symbols = np.array([symbol_at("hidden", 15, 20), symbol_at("hidden", 15, 20)], object)
    xyxy = boxes((0, 0, 30, 40), (0, 0, 60, 40))
    detections = replace(secret(classes=(0, 1)).detections, xyxy=xyxy, symbols=symbols)
    record = replace(secret(), detections=detections)
    assert texts_left(record, Anonymizer([0], "fill")) == [None, None]
    assert texts_left(record, Anonymizer([1], "fill")) == [None, None]
    beside = np.array([None, symbol_at("beside", 50, 20)], object)
    record = replace(record, detections=replace(detections, symbols=beside))
    assert texts_left(record, Anonymizer([0], "fill")) == [None, "beside"]


def test_a_track_that_was_hidden_says_nothing_when_its_class_changes():
    """What it said is still known from the frame in which it was hidden."""
    anonymize = Anonymizer([0], "fill")
    texts = []
    for number, class_id in enumerate((1, 0, 1, 1)):
        record = frame(number)
        earlier = replace(symbol_at("on a track", 15, 20), corners=np.empty((0, 2)), earlier=True)
        detections = replace(
            secret(classes=(class_id,)).detections,
            symbols=np.array([earlier], object),
            track_id=np.array([7 if number < 3 else 8]),
        )
        record = replace(record, picture=Image.whole(noise(40, 60)), detections=detections)
        texts += texts_left(record, anonymize)
    assert texts == ["on a track", None, None, "on a track"]


def test_a_crop_is_of_the_image_that_hides(tmp_path):
    """That of another class too, where a hidden object is in front of it."""
    record = secret(classes=(0, 1))
    detections = replace(record.detections, xyxy=boxes((0, 0, 30, 40), (10, 0, 25, 30)))
    crops = CropSink(OutputFolder(tmp_path / "out"))
    feed(crops, Anonymizer([0], "fill")(replace(record, detections=detections)))
    for name in ("secret/a_0.png", "public/a_1.png"):
        assert (cv2.imread(str(tmp_path / "out" / name)) == GREY).all()


def test_a_dataset_gets_no_copy_of_a_file_that_shows_more(tmp_path):
    dataset = tmp_path / "dataset"
    file = tmp_path / "a.png"
    record = secret(str(file), Origin(str(file), file))
    cv2.imwrite(str(file), record.picture.pixels)
    record = replace(record, picture=replace(record.picture, file=file.read_bytes()))
    for _ in range(2):  # the second time, it is known
        feed(DatasetSink(dataset, NAMES), Anonymizer([0], "fill")(record))
    assert names_in(dataset / "images") == ["a.png"]
    assert (cv2.imread(str(dataset / "images/a.png"))[:, :33] == GREY).all()
    numbers = (dataset / "labels/a.txt").read_text().split()
    assert numbers == ["0", "0.250000", "0.500000", "0.500000", "1.000000"]


def test_only_records_with_detections_are_handed_on(tmp_path):
    records = [
        image("a.jpg"),
        image("b.jpg", count=0),
        failure(),
        frame(3, count=1),
        frame(4),
    ]
    sink = RecordList()
    feed_all(OnlyDetections(sink), records)
    assert sources_of(sink) == ["a.jpg", "in/film.avi"]
    assert sink.closed
    feed_all(OnlyDetections(DatasetSink(tmp_path, ("cat",))), records)
    assert sorted(path.stem for path in (tmp_path / "images").iterdir()) == ["a", "film_3"]


@pytest.mark.slow
def test_codes_of_real_photographs_cannot_be_read(shared):
    """In the boxes of the bundled model, which is where a user would hide them."""
    folder = shared("data/codes-photos")
    with (folder / "labels.tsv").open() as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["kind"] == "photo"]
    code_count = 0
    with Detector("codes", "cpu") as detector:
        for row in rows[:: len(rows) // 30]:
            image = cv2.imread(str(folder / row["file"]))
            xyxy = detector(image).xyxy
            texts = set()
            for code in zxingcpp.read_barcodes(image):
                if is_in(code.position, xyxy):
                    texts.add(code.text)
                    code_count += 1
            if not texts:
                continue
            for method in WAYS:
                for code in zxingcpp.read_barcodes(hidden(image, xyxy, method)):
                    assert code.text not in texts, row["file"]
    assert code_count > 10


def is_in(position, xyxy):
    """Whether the middle of a code that a reader found is in a box."""
    corners = (position.top_left, position.top_right, position.bottom_left, position.bottom_right)
    x, y = np.mean([(corner.x, corner.y) for corner in corners], axis=0)
    left, top, right, bottom = xyxy.T
    return ((left <= x) & (x <= right) & (top <= y) & (y <= bottom)).any()


@pytest.mark.parametrize("beginning", [b"\xff\xd8\xff", b"\x89PNG", b"GIF89a", b"II*\0"])
def test_no_file_is_handed_on_whatever_was_found(beginning):
    """Nothing is hidden in its first image, but perhaps in a second one, or in a thumbnail."""
    record = image(count=0)
    record = replace(record, picture=replace(record.picture, file=beginning))
    assert Anonymizer([0], "blur")(record).picture.file is None


@pytest.mark.parametrize(("others", "is_hidden"), [(2, True), (3, False)])
def test_as_many_hidden_tracks_are_known_as_there_is_room_for(monkeypatch, others, is_hidden):
    monkeypatch.setattr(image_module, "REMEMBERED_TRACKS", 3)
    tracks = HiddenTracks()
    for number in range(1, 2 + others):
        tracks.note_frame([number], [True])
    assert tracks.note_frame([1], [False]).tolist() == [is_hidden]


@pytest.mark.parametrize(("number", "is_hidden"), [(1, True), (0, False), (-1, False)])
def test_what_has_no_track_is_of_no_hidden_one(number, is_hidden):
    """Numbers of tracks begin with 1."""
    tracks = HiddenTracks()
    assert tracks.note_frame([number], [True]).tolist() == [is_hidden]
    assert tracks.note_frame([number], [False]).tolist() == [is_hidden]


def test_repeats_that_were_dropped_are_not_handed_on():
    record = image(count=3)
    detections = replace(record.detections, repeated=np.array([0, 1, 0]))
    sink = RecordList()
    feed(WithoutRepeats(sink), replace(record, detections=detections), failure())
    assert len(sink[0].detections) == 2
    assert sink[1].detections is None
    assert sink.closed


def test_the_hidden_tracks_that_were_seen_last_are_known(monkeypatch):
    monkeypatch.setattr(image_module, "REMEMBERED_TRACKS", 2)
    tracks = HiddenTracks()
    for number in (1, 2, 1, 3):
        tracks.note_frame([number], [True])
    assert tracks.note_frame([1, 2, 3], [False] * 3).tolist() == [True, False, True]


def test_a_hidden_barcode_of_a_frame_without_tracks_says_nothing():
    detections = secret(classes=(0,)).detections
    detections = replace(detections, symbols=np.array([symbol_at("hidden", 15, 20)], object))
    record = replace(frame(0), picture=Image.whole(noise(40, 60)), detections=detections)
    assert texts_left(record, Anonymizer([0], "fill")) == [None]


def test_ten_thousand_hidden_tracks_are_known():
    tracks = HiddenTracks()
    numbers = range(1, 10_002)
    tracks.note_frame(numbers, [True] * len(numbers))
    assert tracks.note_frame([1, 2], [False, False]).tolist() == [False, True]


@pytest.mark.parametrize("field", ["picture", "detections"])
def test_a_record_without_image_or_detections_stays_as_it_is(field):
    record = replace(image(), **{field: None})
    assert Anonymizer([0], "fill")(record) is record


def test_a_record_without_detections_has_none_that_are_hidden():
    anonymizer = Anonymizer([0], "fill")
    assert anonymizer.count(None) == 0
    assert anonymizer.count(image().detections) == 1


@pytest.mark.parametrize(
    ("middle", "covered"),
    [
        ((10, 20), True),
        ((30, 50), True),
        ((9.5, 30), False),
        ((20, 19.5), False),
        ((30.5, 30), False),
        ((20, 50.5), False),
    ],
)
def test_a_box_covers_the_barcodes_whose_middle_is_in_it_or_on_its_edge(middle, covered):
    x, y = middle
    corners = [(x - 4, y - 4), (x + 4, y - 4), (x + 4, y + 4), (x - 4, y + 4)]
    assert is_covered(corners, boxes((10, 20, 30, 50), (100, 100, 110, 110))) == covered
