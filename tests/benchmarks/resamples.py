"""Times the comparison of two models in `detcli eval` on synthetic detections.

    python tests/benchmarks/resamples.py [--images 5000] [--detections 200]

Two models detect in the same labelled images, of 80 classes and seven objects an image, most of
which they find. Prints processor seconds of hotcoco's figures, of the matches at ten IoUs and of a
thousand resamples, and the peak of the memory after each.
"""

import argparse
import resource
import time

import numpy as np

from detcli.commands.eval.bootstrap import bootstrap
from detcli.commands.eval.evaluator import DETECTION, EvaluatedImage, Evaluator
from detcli.commands.eval.labels import OBJECT

CLASSES = 80
OBJECTS = 7  # in an image, on average
SIDE = 640  # pixels


def random_rows(random, count, dtype):
    """Boxes anywhere, of classes of which some are far more frequent than others."""
    rows = np.zeros(count, dtype)
    rows["box"][:, :2] = random.uniform(0, SIDE - 140, (count, 2))
    rows["box"][:, 2:] = random.uniform(10, 140, (count, 2))
    shares = 1 / np.arange(1, CLASSES + 1)
    rows["category"] = random.choice(CLASSES, count, p=shares / shares.sum())
    return rows


def label(image_count):
    """The labels of each image."""
    random = np.random.default_rng(0)
    labels = []
    for _ in range(image_count):
        objects = random_rows(random, random.poisson(OBJECTS), OBJECT)
        objects["area"] = np.nan
        labels.append(objects)
    return labels


def detect(labels, detection_count, seed):
    """Detections of a model that finds four in five objects, a few pixels off."""
    random = np.random.default_rng(seed)
    images = []
    for image_id, objects in enumerate(labels, start=1):
        detections = random_rows(random, detection_count, DETECTION)
        detections["score"] = random.beta(0.3, 3, detection_count)
        is_found = random.random(len(objects)) < 0.8
        count = int(is_found.sum())
        detections["box"][:count] = objects["box"][is_found] + random.normal(0, 4, (count, 4))
        detections["box"][:, 2:] = np.maximum(detections["box"][:, 2:], 2)
        detections["category"][:count] = objects["category"][is_found]
        detections["score"][:count] = random.beta(2, 2, count)
        images.append(EvaluatedImage(image_id, objects, detections))
    return images


def show(title, start_s):
    """Print the processor seconds since a moment, and the peak of the memory so far."""
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{title}: {time.process_time() - start_s:.1f} s, {peak_mb:.0f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--detections", type=int, default=200, help="in each image")
    arguments = parser.parse_args()
    labels = label(arguments.images)
    rankings = []
    for seed in (1, 2):
        images = detect(labels, arguments.detections, seed)
        evaluator = Evaluator(images, range(CLASSES))
        del images
        start_s = time.process_time()
        evaluator.score()
        show(f"figures of model {seed}", start_s)
        start_s = time.process_time()
        rankings.append(list(evaluator.rankings().values()))
        show(f"matches of model {seed}", start_s)
    start_s = time.process_time()
    left, right = rankings
    intervals = bootstrap(left, right, arguments.images)
    show("1000 resamples of both", start_s)
    print(intervals.map50_95)


if __name__ == "__main__":
    main()
