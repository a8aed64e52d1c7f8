"""The bootstrap, held against hotcoco on images that are really there several times."""

import numpy as np
import pytest
from comparisons import random_images

from detcli.commands.eval.bootstrap import (
    RESAMPLES,
    MapInterval,
    bootstrap,
    mean_average_precisions,
    resample,
)
from detcli.commands.eval.evaluator import EvaluatedImage, Evaluator

CATEGORIES = [0, 1, 2]


def rankings(images, categories=CATEGORIES):
    """The ranked detections of each category."""
    return list(Evaluator(images, categories).rankings().values())


def metrics(images, categories=CATEGORIES):
    """What hotcoco says of the images."""
    overall, _ = Evaluator(images, categories).score()
    return overall.metrics


def with_distinct_scores(random, images):
    """Add so little to each score that no two are equal."""
    for image in images:
        image.detections["score"] += random.uniform(0, 1e-4, len(image.detections))
    return images


def duplicated(images, repeats):
    """Each image as often as it was drawn, under ids in the same order."""
    ordered = sorted(images, key=lambda image: image.image_id)
    copies = []
    for image, count in zip(ordered, repeats.tolist(), strict=True):
        for _ in range(count):
            copies.append(EvaluatedImage(len(copies), image.objects, image.detections))
    return copies


@pytest.mark.parametrize("seed", range(5))
def test_with_every_image_once_it_is_hotcocos_map(seed):
    """With equal scores, crowds, ignored objects and objects without an area."""
    images = random_images(np.random.default_rng(seed))
    once = np.ones((1, len(images)), np.int32)
    by_iou = mean_average_precisions(rankings(images), once)[:, 0]
    expected = metrics(images)
    assert by_iou.mean() == pytest.approx(expected.map50_95, abs=1e-6)
    assert by_iou[0] == pytest.approx(expected.map50, abs=1e-6)
    assert by_iou[5] == pytest.approx(expected.map75, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_resample_is_what_hotcoco_says_of_duplicated_images(seed):
    random = np.random.default_rng(seed)
    images = with_distinct_scores(random, random_images(random))
    repeats = next(resample(len(images)))[:3]
    by_iou = mean_average_precisions(rankings(images), repeats)
    for index, repeats_of_images in enumerate(repeats):
        expected = metrics(duplicated(images, repeats_of_images))
        assert repeats_of_images.max() > 1
        assert by_iou[:, index].mean() == pytest.approx(expected.map50_95, abs=1e-6)
        assert by_iou[0, index] == pytest.approx(expected.map50, abs=1e-6)


def test_each_category_is_hotcocos():
    images = random_images(np.random.default_rng(1))
    _, scores = Evaluator(images, CATEGORIES).score()
    once = np.ones((1, len(images)), np.int32)
    for ranking, score in zip(rankings(images), scores.values(), strict=True):
        averages = ranking.average_precisions(once)[:, 0]
        assert averages.mean() == pytest.approx(score.metrics.map50_95, abs=1e-6)


def test_only_the_best_hundred_of_a_class_in_an_image_take_part():
    random = np.random.default_rng(0)
    images = random_images(random, count=4, categories=1)
    for index, image in enumerate(images):
        many = np.repeat(image.detections, 40)
        many["score"] = random.uniform(0, 1, len(many))
        many["box"][:, :2] += random.normal(0, 5, (len(many), 2))
        images[index] = image._replace(detections=many)
    assert max(len(image.detections) for image in images) > 150
    by_iou = mean_average_precisions(rankings(images, [0]), np.ones((1, 4), np.int32))
    assert by_iou.mean() == pytest.approx(metrics(images, [0]).map50_95, abs=1e-6)


def test_a_category_without_objects_in_a_resample_is_left_out_of_its_mean():
    images = random_images(np.random.default_rng(2), count=6)
    ordered = sorted(images, key=lambda image: image.image_id)
    only_first = np.array([[2, 0, 0, 0, 0, 0]], np.int32)
    expected = metrics(duplicated(ordered, only_first[0]))
    absent = set(CATEGORIES) - set(ordered[0].objects["category"].tolist())
    assert absent
    by_iou = mean_average_precisions(rankings(images), only_first)
    assert by_iou.mean() == pytest.approx(expected.map50_95, abs=1e-6)


def test_a_resample_without_any_object_has_no_map():
    images = random_images(np.random.default_rng(0), count=5)
    without_objects = np.zeros((1, 5), np.int32)
    assert np.isnan(mean_average_precisions(rankings(images), without_objects)).all()


def test_resamples_have_as_many_images_and_are_always_the_same():
    first = np.concatenate(list(resample(7)))
    second = np.concatenate(list(resample(7)))
    assert first.shape == (RESAMPLES, 7)
    assert (first.sum(axis=1) == 7).all()
    assert (first == second).all()
    assert first.mean(axis=0) == pytest.approx(np.ones(7), abs=0.15)


def test_the_interval_is_that_of_the_resampled_differences():
    random = np.random.default_rng(3)
    images = with_distinct_scores(random, random_images(random, count=12))
    worse = []
    for image in images:
        worse.append(image._replace(detections=image.detections[1:]))
    left = rankings(images)
    right = rankings(worse)
    intervals = bootstrap(left, right, len(images))
    repeats = np.concatenate(list(resample(len(images))))
    left_map = mean_average_precisions(left, repeats)
    right_map = mean_average_precisions(right, repeats)
    differences = (right_map - left_map).mean(axis=0)
    low, high = np.quantile(differences, [0.025, 0.975])
    assert intervals.map50_95.low == pytest.approx(low, abs=1e-6)
    assert intervals.map50_95.high == pytest.approx(high, abs=1e-6)
    assert intervals.map50.low < intervals.map50.high


def test_a_model_does_not_differ_from_itself():
    ranked = rankings(random_images(np.random.default_rng(0)))
    intervals = bootstrap(ranked, ranked, 30)
    assert intervals.map50_95 == intervals.map50 == MapInterval(0.0, 0.0)


def test_without_images_there_is_no_interval():
    assert bootstrap([], [], 0) == (None, None)
    assert MapInterval.of(np.array([np.nan, np.nan])) is None


def test_images_without_detections_have_a_map_of_zero():
    images = []
    for image in random_images(np.random.default_rng(0)):
        images.append(image._replace(detections=image.detections[:0]))
    by_iou = mean_average_precisions(rankings(images), np.ones((1, 30), np.int32))
    assert (by_iou == 0).all()


def test_an_object_larger_than_any_area_is_ignored_as_hotcoco_does():
    images = random_images(np.random.default_rng(5))
    for image in images:
        image.objects["area"][:1] = 1e12
    by_iou = mean_average_precisions(rankings(images), np.ones((1, 30), np.int32))
    assert by_iou.mean() == pytest.approx(metrics(images).map50_95, abs=1e-6)
