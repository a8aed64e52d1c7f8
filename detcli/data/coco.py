"""The classes of COCO: their names and ids."""

# The 80 classes of COCO 2017, in the order of YOLO models.
COCO = tuple(
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, "
    "fire hydrant, stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, "
    "bear, zebra, giraffe, backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, "
    "sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket, "
    "bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, "
    "broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, "
    "dining table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, "
    "toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear, hair drier, "
    "toothbrush".split(", ")
)

# COCO numbers these classes from 1 to 90; ten numbers are unused.
UNUSED = frozenset({12, 26, 29, 30, 45, 66, 68, 69, 71, 83})

COCO_IDS = tuple(number for number in range(1, 91) if number not in UNUSED)

COCO_ID_OF = dict(zip(COCO, COCO_IDS, strict=True))


def coco_category(class_id: int, names: tuple[str, ...]) -> int | None:
    """Return the category id of a class in COCO's data.

    COCO numbers its 80 classes from 1 to 90, with gaps; models number them from 0 to 79.

    Args:
        class_id: The id of the class in the model.
        names: The names of all the model's classes.

    Returns:
        COCO's id if all of COCO's classes are among the names, and None for a class that COCO does
        not have; otherwise the class's own id.
    """
    if names == COCO:
        return COCO_IDS[class_id]
    has_all_of_coco = COCO_ID_OF.keys() <= set(names)
    if not has_all_of_coco:
        return class_id
    return COCO_ID_OF.get(names[class_id])
