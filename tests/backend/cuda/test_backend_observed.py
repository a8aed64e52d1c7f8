"""What an observer of the CUDA backend sees, and when."""

import numpy as np
from backend.cuda.doubles import open_on_host

from detcli import Letterbox
from detcli.backend.postprocess import SelectionOptions
from detcli.model.file import prepare

EVERYTHING = SelectionOptions(confidence=-1, max_det=20, class_ids=None, nms_iou=None)
ORDER = ["preprocess", "upload", "preprocess", "network", "selection", "download", "selection"]


def detect(backend, images):
    letterboxes = [Letterbox.fit((64, 64), (64, 64)) for _ in images]
    buffer = backend.infer(backend.prepare(images, letterboxes))
    return [one.xyxy.tolist() for one in backend.select(buffer, letterboxes, EVERYTHING)()]


def noise(random, count):
    return list(random.integers(0, 256, (count, 64, 64, 3), np.uint8))


def test_each_stage_is_reported_once_the_gpu_is_idle(driver, make_model, random):
    backend = open_on_host(driver, prepare(make_model(batch=None)))
    images = noise(random, 3)
    expected = detect(backend, images)
    told, waiting = [], []

    def observer(part):
        told.append(part)
        waiting.append(driver.waiting)

    backend.observe(observer)
    assert detect(backend, images) == expected
    assert told == ORDER
    assert waiting == [0] * len(ORDER)
    backend.close()


def test_nothing_waits_without_an_observer(driver, make_model, random):
    backend = open_on_host(driver, prepare(make_model(batch=None)))
    told = []
    backend.observe(told.append)
    backend.observe(None)
    letterboxes = [Letterbox.fit((64, 64), (64, 64))]
    buffer = backend.prepare(noise(random, 1), letterboxes)
    assert driver.waiting > 0
    backend.select(backend.infer(buffer), letterboxes, EVERYTHING)()
    assert told == []
    backend.close()


def test_a_padded_batch(driver, make_model, random):
    backend = open_on_host(driver, prepare(make_model(batch=2)))
    told = []
    backend.observe(told.append)
    assert len(detect(backend, noise(random, 3))) == 3
    assert told == ORDER
    backend.close()
