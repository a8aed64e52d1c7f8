"""What the networks of small families are fed, beside what their own programs feed them.

Each recipe is written with OpenCV from the family's own demo, for an image that is wider than the
input, so that it shrinks to the input's width and half of its height, unless it is stretched.
"""

import cv2
import numpy as np
import pytest
from cell_graphs import EXPORTS
from graph_builder import Graph
from head_checks import file_of
from PIL import Image as PillowImage

from detcli.backend.preprocess import fit_letterbox, to_tensors
from detcli.model.contract import Suppression

GREY_OF_IMAGENET = (0.485, 0.456, 0.406)
SPREAD_OF_IMAGENET = (0.229, 0.224, 0.225)


def image_of(height, width):
    """A BGR image of which no two channels, rows or columns are alike."""
    random = np.random.default_rng(7)
    coarse = random.integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    noise = random.integers(-20, 20, image.shape)
    return np.clip(image.astype(int) + noise, 0, 255).astype(np.uint8)


def stretched(image, size, interpolation):
    height, width = size
    return cv2.resize(image, (width, height), interpolation=interpolation)


def in_black(image, size, interpolation, top):
    """The image at the width of the input, in a black canvas from a row on."""
    height, width = size
    canvas = np.zeros((height, width, 3), np.uint8)
    canvas[top : top + height // 2] = stretched(image, (height // 2, width), interpolation)
    return canvas


def normalised(image, mean, std):
    return (image.astype(np.float64) - mean) / std


def rgb(image):
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def nanodet(image, size):
    canvas = in_black(image, size, cv2.INTER_AREA, top=size[0] // 4)
    return normalised(canvas, (103.53, 116.28, 123.675), (57.375, 57.12, 58.395))


def nanodet_plus(image, size):
    resized = stretched(image, size, cv2.INTER_LINEAR)
    return normalised(resized, (103.53, 116.28, 123.675), (57.375, 57.12, 58.395))


def picodet(image, size):
    resized = stretched(rgb(image), size, cv2.INTER_CUBIC)
    return normalised(resized / 255, GREY_OF_IMAGENET, SPREAD_OF_IMAGENET)


def yunet(image, size):
    """OpenCV's blobFromImage without arguments, at the size that a file has."""
    return stretched(image, size, cv2.INTER_LINEAR)


def fastestdet(image, size):
    return stretched(image, size, cv2.INTER_AREA) / 255


def yolo_fastest(image, size):
    return stretched(image, size, cv2.INTER_LINEAR) / 255


def ultraface(image, size):
    return normalised(stretched(rgb(image), size, cv2.INTER_LINEAR), 127, 128)


def scrfd(image, size):
    return normalised(rgb(in_black(image, size, cv2.INTER_LINEAR, top=0)), 127.5, 128)


def retinaface_mxnet(image, size):
    return rgb(in_black(image, size, cv2.INTER_LINEAR, top=0))


def retinaface(image, size):
    """Without a scale or a spread, and in the order of Caffe."""
    return normalised(in_black(image, size, cv2.INTER_LINEAR, top=0), (104, 117, 123), 1)


def blazeface(image, size):
    """Padded to a square and then shrunk as Pillow does it; from -1 to 1, black included."""
    height, width = image.shape[:2]
    square = np.zeros((width, width, 3), np.uint8)
    top = (width - height) // 2
    square[top : top + height] = rgb(image)
    shrunk = PillowImage.fromarray(square).resize(size[::-1], PillowImage.Resampling.BILINEAR)
    return np.asarray(shrunk) / 127.5 - 1


def yolov5_face(image, size):
    """YOLOv5's letterbox, in its grey."""
    height, width = size
    canvas = np.full((height, width, 3), 114, np.uint8)
    top = height // 4
    canvas[top : top + height // 2] = stretched(image, (height // 2, width), cv2.INTER_LINEAR)
    return rgb(canvas) / 255


RECIPES = {
    "NanoDet": nanodet,
    "NanoDet-Plus": nanodet_plus,
    "PicoDet": picodet,
    "YuNet": yunet,
    "FastestDet": fastestdet,
    "Yolo-FastestV2": yolo_fastest,
    "UltraFace": ultraface,
    "SCRFD": scrfd,
    "RetinaFace, MXNet": retinaface_mxnet,
    "RetinaFace": retinaface,
    "RetinaFace, plates": retinaface,
    "Face-Detector-1MB": retinaface,
    "YuNet of 2021": yunet,
    "YOLOv5-face": yolov5_face,
    "YOLOv5-face, P6": yolov5_face,
    "BlazeFace": blazeface,
    "BlazeFace, full range": blazeface,
}


def contract_of(name, size, batch=1):
    """What detcli reads in a file of a family."""
    export = EXPORTS[name]
    graph = Graph(size=size, batch=batch)
    outputs = export.build(graph, export.classes[0])
    return file_of(graph.model(list(outputs.values()))).detector()


def fed(image, contract, canvas):
    """What the network is fed: `(H, W, channels)`."""
    letterbox = fit_letterbox(image.shape[:2], canvas, contract.preprocessing)
    tensors = to_tensors([image], [letterbox], contract.preprocessing, np.float32)
    return tensors[0].transpose(1, 2, 0)


@pytest.mark.parametrize("name", RECIPES)
def test_a_network_is_fed_what_its_family_feeds_it(name):
    size = EXPORTS[name].sizes[0]
    contract = contract_of(name, size)
    assert contract.family == name
    image = image_of(size[0] * 3 // 4, size[1] * 3 // 2)
    np.testing.assert_allclose(fed(image, contract, size), RECIPES[name](image, size), atol=1e-4)


@pytest.mark.parametrize("name", RECIPES)
def test_no_two_families_with_other_recipes_are_fed_alike(name):
    """A recipe that any preprocessing fits would show nothing."""
    size = EXPORTS[name].sizes[0]
    image = image_of(size[0] * 3 // 4, size[1] * 3 // 2)
    tensor = fed(image, contract_of(name, size), size)
    for recipe in set(RECIPES.values()) - {RECIPES[name]}:
        assert np.abs(recipe(image, size) - tensor).max() > 1e-2, recipe.__name__


def test_yunet_of_any_size_is_fed_the_image_itself_up_to_a_multiple_of_32():
    """As OpenCV's FaceDetectorYN pads: black, below and to the right."""
    contract = contract_of("YuNet", ("height", "width"))
    assert contract.family == "YuNet"
    image = image_of(90, 140)
    padded = np.zeros((96, 160, 3), np.uint8)
    padded[:90, :140] = image
    np.testing.assert_array_equal(fed(image, contract, (640, 640)), padded)


def test_centerface_is_fed_the_image_stretched_to_multiples_of_32():
    """Whatever the file says, which takes any size."""
    export = EXPORTS["CenterFace"]
    contract = contract_of("CenterFace", export.at, batch=10)
    assert contract.family == "CenterFace"
    image = image_of(90, 140)
    expected = rgb(stretched(image, (96, 160), cv2.INTER_LINEAR))
    np.testing.assert_array_equal(fed(image, contract, (640, 640)), expected)


@pytest.mark.parametrize(("side", "rounded"), [(64, 64), (65, 96), (96, 96), (97, 128)])
def test_centerface_rounds_up_from_one_pixel_more(side, rounded):
    contract = contract_of("CenterFace", EXPORTS["CenterFace"].at, batch=10)
    assert fed(image_of(side, side), contract, (640, 640)).shape == (rounded, rounded, 3)


@pytest.mark.parametrize("name", ["RetinaFace", "RetinaFace, plates", "Face-Detector-1MB"])
def test_a_retinaface_rounds_sides_to_the_nearest_pixel(name):
    """As cv2.resize does where it is given factors: 101 rows of 160 become 80.8 of 128."""
    contract = contract_of(name, (128, 128))
    letterbox = fit_letterbox((101, 160), (128, 128), contract.preprocessing)
    assert letterbox.resized == cv2.resize(image_of(101, 160), None, fx=0.8, fy=0.8).shape[:2]


def test_a_blazeface_blends_boxes_that_overlap():
    contract = contract_of("BlazeFace", (128, 128))
    assert contract.suppression is Suppression.BLEND
    assert contract_of("UltraFace", (240, 320)).suppression is Suppression.DROP
