# mypy: disable-error-code=arg-type
"""Which boxes repeat: the boundaries, and all else as a comparison of all pairs finds it."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from thinning import thin

from detcli.data import repeats
from detcli.data.geometry import overlap
from detcli.data.repeats import MIN_IMAGES, MIN_IOU, RepeatFinder, place_of

STONE = (100, 200, 200, 300)


def box(corners=STONE, score=0.5, name="animal", **more_fields):
    """A detection, without what repeats do not need."""
    x1, y1, x2, y2 = corners
    fields = {"class_name": name, "score": score, "x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return fields | more_fields


def image(source, boxes=(), width=1000, height=800, **more_fields):
    """A record, without what repeats do not need."""
    fields = {"source": source, "width": width, "height": height, "detections": list(boxes)}
    return fields | more_fields


def folder(name, count, *boxes):
    """Records of images of a folder, which all have the same boxes."""
    records = []
    for number in range(count):
        copies = [dict(fields) for fields in boxes]
        records.append(image(f"{name}/{number}.jpg", copies))
    return records


def find(records):
    """The groups of repeats in records."""
    finder = RepeatFinder()
    for record in records:
        finder.add(record)
    return finder.find_groups()


def image_counts(groups):
    """The number of images of each group."""
    return [group.image_count for group in groups]


def test_no_records_have_no_repeats():
    assert find([]) == []
    assert find([image("a.jpg"), {"source": "torn.jpg", "error": {}}]) == []


def test_ten_images_are_a_group_and_nine_are_none():
    assert MIN_IMAGES == 10
    assert find(folder("a", 9, box())) == []
    (group,) = find(folder("a", 10, box()))
    assert group.image_count == 10
    assert group.box_count == 10


def test_several_boxes_of_an_image_count_as_one_image():
    assert find(folder("a", 9, box(), box(), box())) == []
    (group,) = find(folder("a", 10, box(), box()))
    assert (group.image_count, group.box_count) == (10, 20)


def test_a_group_says_where_it_is_and_which_images_it_begins_and_ends_with():
    records = [image("a/empty.jpg")] + folder("a", 11, box()) + [image("a/empty2.jpg")]
    records[5]["detections"].insert(0, box((0, 0, 5, 5), 0.9))
    records[5]["detections"][1]["score"] = 0.6
    (group,) = find(records)
    assert group.number == 1
    assert group.place == "a"
    assert group.class_name == "animal"
    assert group.box == (0.1, 0.25, 0.2, 0.375)
    assert (group.record_index, group.detection_index) == (5, 1)
    assert (group.first_record, group.last_record) == (1, 11)


def test_an_overlap_of_the_very_limit_is_enough():
    assert MIN_IOU == 0.85
    records = folder("a", 9, box((0, 0, 100, 100), 0.9))
    at_limit = image("a/x.jpg", [box((0, 0, 85, 100))])
    below_limit = image("a/x.jpg", [box((0, 0, 84.9, 100))])
    assert len(find(records + [at_limit])) == 1
    assert find(records + [below_limit]) == []


@pytest.mark.parametrize(
    "record",
    [
        image("b/x.jpg", [box()]),
        image("a/c/x.jpg", [box()]),
        image("x.jpg", [box()]),
        image("a/x.jpg", [box(name="person")]),
        image("a/x.jpg", [box(repeated=3)]),
        image("a/x.jpg", [box((100, 200, 100, 300))]),
    ],
    ids=["folder", "subfolder", "no folder", "class", "marked before", "no area"],
)
def test_a_box_of_another_camera_or_class_does_not_count(record):
    assert find(folder("a", 9, box()) + [record]) == []


def test_frames_of_a_video_are_images_of_its_camera():
    frames = [image("a/night.mp4", [box()], frame=number) for number in range(10)]
    (group,) = find(frames)
    assert group.place == "a/night.mp4"
    assert find(frames[:9] + [image("a/day.mp4", [box()], frame=9)]) == []


def test_images_without_a_folder_have_the_working_folder():
    assert place_of(image("a.jpg")) == "."


def test_images_of_another_size_are_compared_by_fractions():
    small = []
    for number in range(5):
        halved = box((50, 100, 100, 150))
        small.append(image(f"a/small{number}.jpg", [halved], width=500, height=400))
    (group,) = find(folder("a", 5, box()) + small)
    assert group.image_count == 10


def test_the_group_with_the_most_images_is_the_first():
    records = folder("a", 10, box(score=0.9))
    records += folder("b", 12, box())
    records += folder("c", 11, box(), box((500, 500, 600, 600)))
    groups = find(records)
    folder_names = [group.place for group in groups]
    numbers = [group.number for group in groups]
    assert folder_names == ["b", "c", "c", "a"]
    assert numbers == [1, 2, 3, 4]
    assert image_counts(groups) == [12, 11, 11, 10]


def test_numbers_go_on_behind_those_of_groups_that_were_dropped_before():
    marked_before = image("a/known.jpg", [box((0, 0, 9, 9), repeated=17)])
    (group,) = find([marked_before] + folder("a", 10, box()))
    assert group.number == 18


def test_a_box_with_few_images_leaves_its_neighbours_to_others():
    alone = image("a/alone.jpg", [box((90, 200, 190, 300), 0.99)])  # IoU 0.82 with the stone
    between = folder("a", 10, box((95, 200, 195, 300), 0.4))  # IoU 0.90 with both
    groups = find([alone] + between)
    assert image_counts(groups) == [11]
    stones = folder("b", 9, box(score=0.6))
    groups = find(stones + [image("b/x.jpg", [box(score=0.4)])])
    assert image_counts(groups) == [10]


def slow_groups(records):
    """The groups by their definition: every box is compared with every other."""
    boxes = []
    for number, record in enumerate(records):
        for detection in record["detections"]:
            kind = (place_of(record), detection["class_name"])
            corners = repeats.fractions_of(detection, record)
            boxes.append((-detection["score"], corners, kind, number))
    boxes.sort()
    grouped = set()
    groups = []
    for position, (_, corners, kind, _) in enumerate(boxes):
        if position in grouped:
            continue
        members = []
        for other_position, (_, other_corners, other_kind, _) in enumerate(boxes):
            if kind == other_kind and slow_iou(corners, other_corners) >= MIN_IOU:
                members.append(other_position)
        images = {boxes[member][3] for member in members}
        if len(images) >= repeats.MIN_IMAGES:
            grouped.update(members)
            folder_name, class_name = kind
            groups.append((-len(images), folder_name, class_name, corners, len(members)))
    return sorted(groups)


def slow_iou(first, second):
    """The intersection over union of two boxes, in plain arithmetic."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    common = max(0, width) * max(0, height)
    first_area = (first[2] - first[0]) * (first[3] - first[1])
    second_area = (second[2] - second[0]) * (second[3] - second[1])
    return common / (first_area + second_area - common)


def summaries(groups):
    """What the slow search says of groups."""
    texts = []
    for group in groups:
        texts.append(
            (-group.image_count, group.place, group.class_name, group.box, group.box_count)
        )
    return texts


def locations_in_turn(records):
    """Repeats as MegaDetector's manual describes their elimination: one detection after another.

    A detection that overlaps one of the locations of its folder is counted there, and any other is
    a new location. Those with detections in enough images are shown to a person.
    """
    locations = []
    for number, record in enumerate(records):
        for detection in record["detections"]:
            kind = (place_of(record), detection["class_name"])
            corners = repeats.fractions_of(detection, record)
            for location_kind, location, images in locations:
                if location_kind == kind and slow_iou(location, corners) >= MIN_IOU:
                    images.add(number)
                    break
            else:
                locations.append((kind, corners, {number}))
    suspicious = []
    for kind, _, images in locations:
        if len(images) >= MIN_IMAGES:
            suspicious.append((kind, images))
    return suspicious


def test_stones_are_those_that_detections_compared_in_turn_show():
    numbers = np.random.default_rng(8)
    records = []
    for site in range(3):
        for index in range(40):
            boxes = []
            for stone in range(3):
                if index < 9 + stone * 8:  # 9, 17 and 25 images
                    left, top = (200 * stone + 50 * site, 100 * stone) + numbers.normal(0, 0.8, 2)
                    boxes.append(box((left, top, left + 90, top + 60), numbers.uniform(0.2, 0.9)))
            left, top = numbers.uniform(0, 700), numbers.uniform(0, 500)
            boxes.append(box((left, top, left + 150, top + 120), 0.8))  # an animal that walks by
            records.append(image(f"site{site}/{index}.jpg", boxes))
    in_turn = []
    for (folder_name, class_name), images in locations_in_turn(records):
        in_turn.append((folder_name, class_name, len(images), min(images), max(images)))
    at_once = []
    for group in find(records):
        images_of_group = (group.image_count, group.first_record, group.last_record)
        at_once.append((group.place, group.class_name) + images_of_group)
    assert len(at_once) == 6
    assert sorted(at_once) == sorted(in_turn)


sides = st.sampled_from([1, 7, 40, 43, 47, 50, 100, 300.5])
starts = st.sampled_from([-5, 0, 1, 2, 3, 5, 8, 100, 104, 109.25, 500])
scores = st.sampled_from([0.25, 0.5, 0.9])
boxes_of_image = st.lists(
    st.builds(
        lambda x, y, width, height, score, name: box((x, y, x + width, y + height), score, name),
        starts,
        starts,
        sides,
        sides,
        scores,
        st.sampled_from(["animal", "person"]),
    ),
    max_size=6,
)
images = st.lists(
    st.builds(
        lambda folder_name, boxes: image(f"{folder_name}/a.jpg", boxes),
        st.sampled_from(["a", "b"]),
        boxes_of_image,
    ),
    max_size=30,
)


@given(images, st.sampled_from([1, 2, 3]))
def test_groups_are_those_of_a_comparison_of_all_pairs(records, min_images):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "MIN_IMAGES", min_images)
        assert summaries(find(records)) == slow_groups(records)


@given(images, st.randoms())
def test_groups_do_not_depend_on_the_order_of_records(records, order):
    shuffled = list(records)
    order.shuffle(shuffled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "MIN_IMAGES", 2)
        assert summaries(find(shuffled)) == summaries(find(records))


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
@example(1)
def test_groups_of_jittering_boxes_are_those_of_a_comparison_of_all_pairs(seed):
    numbers = np.random.default_rng(seed)
    records = []
    for index in range(60):
        boxes = []
        for _ in range(2):
            left, top = numbers.choice([100, 130, 400], 2) + numbers.normal(0, 3, 2)
            width, height = np.exp(numbers.choice([3.0, 4.0, 5.0], 2) + numbers.normal(0, 0.05, 2))
            corners = np.round([left, top, left + width, top + height], 2)
            boxes.append(box(corners.tolist(), 0.5))
        records.append(image(f"a/{index}.jpg", boxes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "MIN_IMAGES", 3)
        assert summaries(find(records)) == slow_groups(records)


edges = st.sampled_from([0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.85, 0.9, 1.0])
corners_of_boxes = st.tuples(edges, edges, edges, edges)


@given(corners_of_boxes, corners_of_boxes)
@example((0.0, 0.0, 1.0, 1.0), (0.15, 0.0, 1.0, 1.0))
def test_two_boxes_overlap_enough_where_arrays_of_boxes_do(first, second):
    iou = overlap(np.array(first), np.array(second))
    assert repeats.overlap_enough(first, second) == (iou >= MIN_IOU)


@pytest.mark.slow
def test_boxes_at_the_very_limit_are_found_in_the_nearby_cells():
    numbers = np.random.default_rng(5)
    starts = numbers.uniform(-1, 1, (2000, 2))
    sides = np.exp(numbers.uniform(-6, 0, (2000, 2)))
    boxes = np.concatenate([starts, starts + sides], axis=1)
    # Beside each, a box whose left or upper side is moved: inwards, so that its width or height is
    # 0.8500001 of the other's, or both sides by 0.0811, for an IoU of 0.8500001 as well.
    inwards = starts + 0.1499999 * sides * numbers.choice([[0, 1], [1, 0]], 2000)
    narrower = np.concatenate([inwards, starts + sides], axis=1)
    aside = 0.08108 * sides * numbers.choice([[0, 1], [1, 0], [0, -1], [-1, 0]], 2000)
    moved = np.concatenate([starts + aside, starts + sides + aside], axis=1)
    for neighbours in (narrower, moved):
        nearby = repeats.NearbyBoxes(np.concatenate([boxes, neighbours]), np.zeros(4000, np.int64))
        for number in thin("boxes at the limit of an overlap", range(2000), 400):
            assert number + 2000 in nearby.overlapping(number)
            assert number in nearby.overlapping(number + 2000)


def test_boxes_with_many_others_near_them_are_grouped_as_others_are(monkeypatch):
    records = folder("a", 30, box(), box((104, 200, 204, 300), 0.4)) + folder("b", 9, box())
    groups = find(records)
    monkeypatch.setattr(repeats, "MANY_NEARBY", 2)
    monkeypatch.setattr(repeats, "BOXES_AT_A_TIME", 1)
    assert find(records) == groups
