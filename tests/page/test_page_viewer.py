"""The image that is open, in a browser: zoom, labels, files in full size, sides and videos."""

import cv2
import numpy as np
import pytest
from pages import box, grey, make, record_of
from thinning import thin

from detcli.config.shapes import Line
from detcli.page import page as module
from detcli.page.entries import BoxKind, PageBox
from detcli.page.page import Page, PageImage
from detcli.page.run_info import RunInfo
from detcli.sink.draw_labels import USUAL_COVERAGE

pytestmark = pytest.mark.slow

STAGE = "#stage .pane"
PLACE = """
const pane = document.querySelector("#stage .pane").getBoundingClientRect();
const image = document.querySelector("#stage img").getBoundingClientRect();
const { scale } = lensSize();
return {
  zoom: lens.zoom,
  scale,
  middle: [pane.x + pane.width / 2, pane.y + pane.height / 2],
  image: [image.x, image.y, image.width, image.height],
};
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """An image with a small box inside a large one, and one with nothing."""
    large = box(0, 0.9, (0, 0, 80, 60))
    small = box(1, 0.8, (60, 40, 68, 46))
    records = [record_of("a.jpg", [large, small]), record_of("b.jpg")]
    return make(tmp_path_factory.mktemp("two") / "page", records)


def opened(browser, page, view="#picture=0", **window):
    """Where the image is that a view opens."""
    browser.show(page, view, **window)
    browser.wait("return document.querySelector('#stage img')?.complete")
    return browser.run(PLACE)


def on_screen(browser, x, y):
    """Where a pixel of the image is in the window."""
    place = browser.run(PLACE)
    left, top, _, _ = place["image"]
    return left + x * place["scale"], top + y * place["scale"]


def test_the_wheel_zooms_and_what_is_under_the_pointer_stays(browser, two):
    before = opened(browser, two)
    x, y = on_screen(browser, 64, 43)
    browser.mouse("wheel", x, y, deltaX=0, deltaY=-600)
    after = browser.run(PLACE)
    assert after["scale"] > 2 * before["scale"]
    assert on_screen(browser, 64, 43) == pytest.approx((x, y), abs=1)
    outline = browser.run(
        "const box = document.querySelector('#stage .box').getBoundingClientRect();"
        "return [box.x, box.y, box.right, box.bottom]"
    )
    assert outline[:2] == pytest.approx(on_screen(browser, 60, 40), abs=4)
    assert outline[2:] == pytest.approx(on_screen(browser, 68, 46), abs=4)
    browser.mouse("wheel", x, y, deltaX=0, deltaY=6000)
    assert browser.run(PLACE) == before


def test_a_drag_moves_a_zoomed_image_up_to_its_edge(browser, two):
    opened(browser, two)
    browser.press("+", "+", "+")
    x, y = browser.run(PLACE)["middle"]
    left = browser.run(PLACE)["image"][0]
    browser.mouse("press", x, y, button="left", buttons=1, clickCount=1)
    browser.mouse("move", x + 40, y + 10, button="left", buttons=1)
    assert browser.run(PLACE)["image"][0] == pytest.approx(left + 40, abs=1)
    browser.mouse("move", x + 4000, y, button="left", buttons=1)
    browser.mouse("release", x + 4000, y, button="left", clickCount=1)
    assert browser.run(PLACE)["image"][0] == pytest.approx(0, abs=1)
    assert browser.run("return viewer.chosenBox") is None  # a drag is not a click


def test_keys_zoom_and_arrows_then_move(browser, two):
    from selenium.webdriver.common.keys import Keys

    before = opened(browser, two)
    browser.press("+", "+")
    left, top, _, _ = browser.run(PLACE)["image"]
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert browser.run(PLACE)["image"][:2] == pytest.approx([left - 60, top - 60], abs=1)
    browser.press("-")
    assert browser.run(PLACE)["zoom"] == pytest.approx(1.5)
    browser.press("n")
    assert browser.text("#viewer-name") == "b.jpg"
    assert browser.run("return lens.zoom") == 1
    browser.press("p", "+", "0")
    assert browser.run(PLACE) == before
    browser.press(Keys.ARROW_RIGHT)
    assert browser.text("#viewer-name") == "b.jpg"


def test_a_double_click_shows_the_images_own_pixels_or_more(browser, two):
    before = opened(browser, two)
    zooms = []
    for _ in range(2):
        x, y = on_screen(browser, 20, 20)
        for count in (1, 2):
            for kind in ("press", "release"):
                browser.mouse(kind, x, y, button="left", clickCount=count)
        zooms.append(browser.run(PLACE)["zoom"])
        assert on_screen(browser, 20, 20)[1] == pytest.approx(y, abs=60)
    assert zooms == [2, 1]
    browser.click("#zoom")
    assert browser.run(PLACE)["zoom"] == 2
    assert browser.text("#zoom") == f"{round(200 * before['scale'])} %"


def test_two_fingers_pinch(browser, two):
    before = opened(browser, two, width=390, height=800)
    x, y = before["middle"]
    browser.touch((x - 20, y), (x + 20, y))
    browser.touch((x - 60, y), (x + 60, y))
    browser.touch()
    assert browser.run(PLACE)["zoom"] == pytest.approx(3, rel=0.05)
    left = browser.run(PLACE)["image"][0]
    browser.touch((x, y))
    browser.touch((x - 30, y))
    browser.touch()
    assert browser.run(PLACE)["image"][0] == pytest.approx(left - 30, abs=1)


def point_at(browser, x, y):
    """Move the mouse to a pixel of the image."""
    window_x, window_y = on_screen(browser, x, y)
    browser.mouse("move", window_x, window_y)


def chosen(browser):
    """The boxes and the rows that are lit."""
    return browser.run("""
        return ["#stage .box.chosen", "#viewer-found tr.chosen"].map((selector) =>
          [...document.querySelectorAll(selector)].map(({ dataset }) => Number(dataset.box)))""")


def test_a_box_and_its_row_light_up_together(browser, two):
    opened(browser, two)
    assert chosen(browser) == [[], []]
    point_at(browser, 64, 43)
    assert chosen(browser) == [[1], [1]]  # the smaller one, on top
    point_at(browser, 20, 20)
    assert chosen(browser) == [[0], [0]]
    x, y = on_screen(browser, 64, 43)
    for kind in ("press", "release"):
        browser.mouse(kind, x, y, button="left", clickCount=1)
    row = browser.run(
        "const row = document.querySelector('#viewer-found tbody tr').getBoundingClientRect();"
        "return [row.x + 5, row.y + 5]"
    )
    row_x, row_y = row
    browser.mouse("move", row_x - 60, row_y - 200)
    assert chosen(browser) == [[1], [1]]  # it stays
    browser.mouse("move", row_x, row_y)
    assert chosen(browser) == [[0], [0]]
    assert browser.run(PLACE)["zoom"] == 1
    browser.run("changeState({ class: ['person'] })")
    browser.mouse("move", row_x - 60, row_y - 200)
    browser.settle()
    assert chosen(browser) == [[], []]  # what the filter hides does not stay
    assert browser.run("return document.querySelector('#stage .dimmed')") is None
    browser.run("changeState({ class: [] })")
    browser.settle()
    browser.click("#viewer-found tbody tr:nth-child(2) button")
    left, top = on_screen(browser, 60, 40)
    right, bottom = on_screen(browser, 68, 46)
    x, y = browser.run(PLACE)["middle"]
    assert browser.run(PLACE)["zoom"] > 2
    assert left < x < right
    assert top < y < bottom


def test_labels_are_off_and_boxes_stay_also_after_a_reload(browser, two):
    opened(browser, two)
    parts = """return [...document.querySelectorAll('#stage :is(.box, .label)')]
        .map((part) => part.classList[0])"""
    assert browser.run(parts).count("label") == 2
    browser.press("l")
    assert browser.run(parts) == ["box", "box"]
    browser.wait("return location.hash.includes('labels=off')")
    browser.driver.refresh()
    browser.wait("return document.documentElement.dataset.ready && viewer.record")
    browser.settle()
    assert browser.run(parts) == ["box", "box"]
    point_at(browser, 64, 43)
    assert browser.texts("#stage .extra text") == ["car 0.80"]  # of what is pointed at
    browser.click("#labels")
    assert browser.run(parts).count("label") == 2


def crowd(count=40):
    """Boxes of three classes, many of which overlap."""
    random = np.random.default_rng(3)
    corners = random.uniform(0, 500, (count, 2))
    xyxy = np.hstack([corners, corners + random.uniform(12, 90, (count, 2))])
    boxes = []
    for number, edges in enumerate(xyxy.tolist()):
        boxes.append(box(number % 3, 0.9 - number / 100, edges))
    return boxes


COVERED = """
const areaOf = ({ left, top, right, bottom }) =>
  Math.max(0, right - left) * Math.max(0, bottom - top);
const commonArea = (a, b) => areaOf({
  left: Math.max(a.left, b.left),
  top: Math.max(a.top, b.top),
  right: Math.min(a.right, b.right),
  bottom: Math.min(a.bottom, b.bottom),
});
const labels = [...document.querySelectorAll("#stage .label rect")].map((label) => {
  const { x, y, width, height } = label.getBBox();
  return { left: x, top: y, right: x + width, bottom: y + height };
});
let mostCovered = 0; // the largest share of a box
for (const box of shownBoxes(viewer.record)) {
  const [left, top, right, bottom] = inPicture(coordinatesOf(box), viewer.record);
  const edges = { left, top, right, bottom };
  let covered = 0;
  for (const label of labels) covered += commonArea(label, edges);
  mostCovered = Math.max(mostCovered, covered / areaOf(edges));
}
let overlap = 0; // the largest area that two labels share
for (const [index, label] of labels.entries()) {
  for (const other of labels.slice(index + 1))
    overlap = Math.max(overlap, commonArea(label, other));
}
return [labels.length, mostCovered, overlap];
"""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """An image with forty boxes."""
    crowded_record = record_of("a.jpg", crowd(), width=600, height=600)
    return make(tmp_path_factory.mktemp("crowded") / "page", [crowded_record])


@pytest.mark.parametrize("width", thin("widths at which labels cover little", [390, 600], count=1))
def test_labels_cover_as_little_of_a_box_as_saved_images_have_it(browser, crowded, width):
    opened(browser, crowded, width=width)
    count, most_covered, overlap = browser.run(COVERED)
    assert 5 <= count < 40
    assert most_covered <= USUAL_COVERAGE + 1e-6
    assert overlap == 0
    browser.run("zoomTo(8)")
    assert browser.run(COVERED)[0] > count  # there is more room


def test_thumbnails_have_thin_lines(browser, two):
    browser.show(two)
    width = "return getComputedStyle(document.querySelector(arguments[0])).strokeWidth"
    line = browser.run(width, ".tile path:not(.casing)")
    casing = browser.run(width, ".tile .casing")
    assert float(line.removesuffix("px")) < 1.5
    assert float(casing.removesuffix("px")) < 2.5


@pytest.fixture
def photo(tmp_path):
    """A JPEG that is red on the left and lies on its side: upright, red is above."""
    (tmp_path / "pics").mkdir()
    path = tmp_path / "pics" / "a #1 %20é.jpg"
    pixels = np.full((1500, 2000, 3), 60, np.uint8)
    pixels[:, :1000, 2] = 250
    exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    _, jpeg = cv2.imencode(".jpg", pixels)
    data = jpeg.tobytes()
    segment = b"Exif\0\0" + exif
    length = (len(segment) + 2).to_bytes(2, "big")
    path.write_bytes(data[:2] + b"\xff\xe1" + length + segment + data[2:])
    return path


def linked(path, photo):
    """A page that shows a photo where it is."""
    upright = cv2.imread(str(photo))
    page = Page(path, RunInfo("predict"), linked=True)
    of_photo = record_of(str(photo), [box()], warnings=["it is odd"], width=1500, height=2000)
    page.add(of_photo, lambda: PageImage(upright, photo))  # type: ignore[arg-type]
    page.close()
    return path


TOP = """
const canvas = document.createElement("canvas");
const image = document.querySelector("#stage img");
[canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
return [image.naturalWidth, image.naturalHeight, decodeURI(image.src).split("/").at(-2)];
"""


def test_a_file_is_shown_where_it_is_in_full_size(browser, photo, tmp_path):
    page = linked(tmp_path / "page", photo)
    assert not list((page / "pictures").rglob("*.jpg"))
    opened(browser, page)
    browser.wait("return document.querySelector('#stage img').naturalWidth")
    assert browser.run(TOP) == [1500, 2000, "pics"]
    assert "copy" not in browser.text("#viewer-facts")
    assert browser.text("#viewer-warnings") == "it is odd"
    requests = browser.requests()  # it is no file of the page's folder, as was asked for
    assert any(name.startswith("file:") and "pics" in name for name in requests)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_file_that_is_no_more_is_a_thumbnail_and_a_sentence(
    chromium, photo, tmp_path, is_replaced
):
    page = linked(tmp_path / "page", photo)
    photo.unlink()
    sentence = "The file is not where it was"
    if is_replaced:
        cv2.imwrite(str(photo), np.zeros((10, 10, 3), np.uint8))
        sentence = "The file is another one now"
    opened(chromium, page)
    chromium.wait("return document.querySelector('#viewer-warnings p:nth-child(2)')")
    assert chromium.texts("#viewer-warnings p") == ["it is odd", sentence]
    chromium.wait("return document.querySelector('#stage img').naturalWidth === 240")
    assert "a copy of 240 \u00d7 320" in chromium.text("#viewer-facts")
    chromium.messages(), chromium.requests()


def test_where_a_copy_is_lost_its_thumbnail_and_a_sentence_are_shown(chromium, tmp_path):
    page = Page(tmp_path / "page", RunInfo("predict"))
    large = record_of("a.jpg", [box()], width=800, height=600)
    page.add(large, lambda: grey((600, 800)))
    page.close()
    (tmp_path / "page/pictures/0/0/0.jpg").unlink()
    opened(chromium, tmp_path / "page")
    chromium.wait("return document.querySelector('#stage img').naturalWidth === 320")
    assert chromium.texts("#viewer-warnings p") == ["The copy of the image is lost"]
    assert "a copy of 320 \u00d7 240" in chromium.text("#viewer-facts")
    chromium.messages(), chromium.requests()


def test_a_smaller_copy_says_so(browser, tmp_path):
    page = Page(tmp_path / "page", RunInfo("predict"))
    large = record_of("a.jpg", [box()], width=2000, height=1500)
    page.add(large, lambda: grey((1500, 2000)))
    page.close()
    opened(browser, tmp_path / "page")
    browser.wait("return document.querySelector('#stage img').naturalWidth")
    browser.settle()
    assert "a copy of 1280 \u00d7 960" in browser.text("#viewer-facts")


SIDES = RunInfo(
    "verify",
    kinds=[
        BoxKind("moved", (1, 2, 3)),
        BoxKind("only a.onnx", (0, 94, 213), side=0),
        BoxKind("only b.onnx", (178, 114, 0), side=1),
    ],
    sides=("a.onnx", "b.onnx"),
)


@pytest.fixture(scope="module")
def compared_boxes(tmp_path_factory):
    """A box that both sides have, and one of each."""
    of_both = PageBox(0, "person", 0.9, (2, 2, 30, 30), 0, (0.7, (6, 6, 34, 34)))
    of_left = PageBox(1, "car", 0.8, (40, 10, 60, 30), 1)
    of_right = PageBox(1, "car", 0.6, (40, 35, 60, 55), 2)
    records = [record_of("a.jpg"), record_of("b.jpg")]
    boxes = [[of_both, of_left, of_right], [of_both]]
    return make(tmp_path_factory.mktemp("compared") / "page", records, SIDES, boxes)


def drawn(browser):
    """Of each drawing, its side and what its boxes are."""
    return browser.run("""
        return [...document.querySelectorAll("#stage svg")].map((svg) => [
          svg.dataset.side ?? null,
          [...svg.querySelectorAll(".label text")].map((text) => text.textContent).sort(),
        ])""")


LEFT = ["car 0.80", "person 0.90"]
RIGHT = ["car 0.60", "person 0.70"]


def test_two_sides_meet_at_a_border_that_moves(browser, compared_boxes):
    opened(browser, compared_boxes, "#picture=0&sides=swipe")
    assert drawn(browser) == [["0", LEFT], ["1", RIGHT]]
    assert browser.texts(".side-name") == ["a.onnx", "b.onnx"]
    clip = """return [...document.querySelectorAll('#stage svg')]
        .map((svg) => getComputedStyle(svg).clipPath)"""
    assert browser.run(clip) == ["inset(0px 50% 0px 0px)", "inset(0px 0px 0px 50%)"]
    browser.set("#stage input", "80")  # and the middle of its knob is there
    assert browser.run(clip)[1] == "inset(0px 0px 0px calc(80% - 4.8px))"
    browser.press("n")
    assert browser.run("return document.querySelector('#stage input').value") == "80"


def test_two_sides_are_beside_each_other_and_zoom_together(browser, compared_boxes):
    opened(browser, compared_boxes)
    assert drawn(browser) == [[None, ["car 0.60", "car 0.80", "person 0.90"]]]
    browser.press("s", "s")
    assert drawn(browser) == [["0", LEFT], ["1", RIGHT]]
    texts_of_panes = browser.run("return panes().map((pane) => pane.textContent)")
    left_text, right_text = texts_of_panes
    assert "onnx" in left_text
    assert "onnx" in right_text
    browser.press("+", "+")
    view_boxes = """return [...document.querySelectorAll('#stage svg')]
        .map((svg) => svg.getAttribute('viewBox'))"""
    left, right = browser.run(view_boxes)
    assert left == right
    assert browser.run("return lens.zoom") > 2
    browser.press("n")
    assert drawn(browser) == [["0", ["person 0.90"]], ["1", ["person 0.70"]]]
    browser.wait("return location.hash.includes('sides=pair')")


def frames(count):
    """A film: one object until frame 12, another from 6 on; the first crosses at 8."""
    records = []
    for number in range(count):
        detections = []
        if number <= 12:
            person = box(0, 0.9, (number, 10, number + 20, 40)) | {"track_id": 1}
            if number == 8:
                person["crossed"] = [{"line": "gate", "to": "left"}]
            detections.append(person)
        if number >= 6:
            detections.append(box(1, 0.8, (40, 20, 60, 50)) | {"track_id": 2})
        records.append(record_of("in/film.mp4", detections, frame=number, time_s=number / 10))
    return records


@pytest.fixture(scope="module")
def film_page(tmp_path_factory):
    about = RunInfo("predict", zones_and_lines=(Line.parse("gate=0.5,0,0.5,1"),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "VIDEO_IMAGES", 16)
        return make(tmp_path_factory.mktemp("film") / "page", frames(20), about)


def test_each_track_has_a_row_with_its_crossings(browser, film_page):
    browser.show(film_page, "#view=timeline")
    assert browser.texts(".tracks li bdi") == ["#1 person", "#2 car"]
    class_legend, crossing_legend = browser.texts("#view-timeline .legend")
    assert class_legend.splitlines() == ["car", "person"]  # once, in however many tracks
    assert crossing_legend == "gate to the left: 1"
    titles = "return [...document.querySelectorAll('.lane a')].map((link) => link.title)"
    assert browser.run(titles) == [
        "#1 person, 0:00.0 to 0:01.2",
        "#1 person crosses gate to the left, 0:00.8",
        "#2 car, 0:00.6 to 0:01.9",
    ]
    spans = """return [...document.querySelectorAll('.lane a')].map((link) => {
        const lane = link.parentElement.getBoundingClientRect();
        const { left, right } = link.getBoundingClientRect();
        return [left, right].map((x) => (x - lane.left) / lane.width);
    })"""
    life_of_person, crossing, life_of_car = browser.run(spans)
    assert life_of_person == pytest.approx([0, 12 / 19], abs=0.01)
    assert sum(crossing) / 2 == pytest.approx(8 / 19, abs=0.01)
    assert life_of_car == pytest.approx([6 / 19, 1], abs=0.01)
    browser.click(".lane .crossing")
    assert "frame 8" in browser.text("#viewer-facts")
    browser.press("b")
    browser.show(film_page, "#view=timeline&class=car")
    assert browser.texts(".tracks li bdi") == ["#2 car"]


def test_a_timeline_counts_by_class_or_by_track(browser, tmp_path):
    records = []
    for number in range(10):
        detections = []
        for track in range(1, 9):  # more than there are colours for classes
            sides = (track, 10, track + 20, 40)
            detections.append(box(track % 2, 0.9, sides) | {"track_id": track})
        records.append(record_of("film.mp4", detections, frame=number, time_s=number / 10))
    browser.open(make(tmp_path / "page", records), "#view=timeline")
    fills = "return [...document.querySelectorAll('.strip path[fill]')]"
    fills += ".filter((path) => path.getAttribute('d')).map((path) => path.getAttribute('fill'))"
    colours_of_classes = browser.run("return page.classes.map(({ colour }) => colour)")
    assert sorted(browser.run(fills)) == sorted(colours_of_classes)  # none is grey
    assert browser.texts(".legend")[0].splitlines() == ["car", "person"]
    browser.set("#count", "track")
    colours_of_tracks = browser.run("return page.lastRun.palette.slice(0, 8).map(([c]) => c)")
    assert browser.run(fills) == colours_of_tracks
    assert browser.texts(".legend")[0].splitlines()[0] == "#1 car"
    browser.wait("return location.hash === '#view=timeline&count=track'")
    browser.go("")
    assert not browser.find("#count").is_displayed()


def test_a_click_on_the_strip_opens_that_moment(browser, film_page):
    browser.show(film_page, "#view=timeline")
    x, y, width = browser.run("""
        const { x, y, width } = document.querySelector('.strip').getBoundingClientRect();
        return [x, y, width]""")
    browser.mouse("move", x + 0.42 * width, y + 20)
    assert browser.text(".moment") == "0:00.8: 2 boxes"
    for kind in ("press", "release"):
        browser.mouse(kind, x + 0.42 * width, y + 20, button="left", clickCount=1)
    assert "frame 8 ·" in browser.text("#viewer-facts")


def test_one_jumps_from_event_to_event(browser, film_page):
    opened(browser, film_page)
    assert browser.text("#moments") == "0:00.0: #1 person appears"
    browser.press("]")
    assert browser.text("#moments") == "0:00.6: #2 car appears"
    browser.click("#after")
    assert browser.text("#moments") == "0:00.8: #1 person crosses gate to the left"
    browser.press("]")
    assert "frame 8 ·" in browser.text("#viewer-facts")  # it was the last one
    browser.press("[")
    assert "frame 6 ·" in browser.text("#viewer-facts")
    browser.show(film_page, "#picture=0&class=car")
    assert browser.text("#moments") == ""
    browser.press("]")
    assert browser.text("#moments") == "0:00.6: #2 car appears"


def test_frames_play_one_after_the_other_and_stop_where_one_says(browser, film_page):
    opened(browser, film_page)
    browser.run(
        "window.openedFrames = []; const open = openViewer;"
        "openViewer = (record) => { openedFrames.push(record.frame); open(record); }"
    )
    browser.press(" ")
    browser.wait("return openedFrames.length >= 3")
    browser.press(" ")
    frame = browser.run("return viewer.record.frame")
    browser.wait(f"return location.hash === '#picture={frame}'")
    assert browser.run("return openedFrames")[:3] == [2, 4, 6]  # those that have an image
    assert browser.find("#play").get_attribute("aria-pressed") == "false"
    browser.press(" ", "p")  # whoever steps plays no more
    assert browser.find("#play").get_attribute("aria-pressed") == "false"
    browser.click("#play")
    browser.wait("return viewer.record.frame === 18 && !player.playback")  # and at the end


FRAMES = 120
"""Of a film that goes on while a busy machine takes its time."""


def test_a_saved_film_plays_from_the_frame_on(browser, tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "saved" / "film 1.mp4"
    path.parent.mkdir()
    with av.open(str(path), "w") as file:
        stream = file.add_stream("h264", rate=10)
        stream.width = 80
        stream.height = 60
        stream.pix_fmt = "yuv420p"
        for number in range(FRAMES):
            image = np.full((60, 80, 3), number, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="bgr24")))
        file.mux(stream.encode())
    page = Page(tmp_path / "page", RunInfo("predict"))
    for frame in frames(FRAMES):
        page.add(frame, grey, annotated_video=path)
    page.close()
    opened(browser, tmp_path / "page", "#picture=10")
    browser.click("#play")
    browser.wait("return document.querySelector('#stage video')?.currentTime > 1.2")
    assert browser.run("return document.querySelector('#stage video').videoWidth") == 80
    browser.click("#play")
    assert browser.run("return document.querySelector('#stage video')") is None
    assert browser.run("return viewer.record.frame") >= 12
    browser.requests()


def test_a_film_that_is_gone_gives_way_to_the_frames(chromium, tmp_path):
    page = Page(tmp_path / "page", RunInfo("predict"))
    for frame in frames(20):
        page.add(frame, grey, annotated_video=tmp_path / "gone.mp4")
    page.close()
    opened(chromium, tmp_path / "page")
    chromium.click("#play")
    chromium.wait("return viewer.record.frame > 1")
    assert chromium.run("return document.querySelector('#stage video')") is None
    chromium.messages(), chromium.requests()
