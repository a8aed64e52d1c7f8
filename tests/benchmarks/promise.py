"""Counts how often `detcli promise` is right: many reviews of images whose truth is known.

    detcli predict coco128/images --model yolov10n --conf 0.001 -o coco.jsonl
    python tests/benchmarks/promise.py coco.jsonl coco128/instances.json [--too-high]

Each pair of an image and a class of COCO is a unit, with its best score and whether the labels have
such an object. From these, 100,000 units are drawn for each share of animals, with a little noise.
A review is planned as `deal` plans it, its rounds are judged as `check` judges them, and its
promise is compared with what is truly lost. With --too-high, the highest threshold is where 1.3
times as many animals are lost as may be, so that only a lower one can be promised rightly.
"""

import argparse
import functools
import json
from dataclasses import dataclass

import numpy as np

from detcli.commands.promise.bounds import max_positives, min_positives
from detcli.commands.promise.deck import FURTHER_BOUND_SHARE, split_error
from detcli.commands.promise.effort import MAX_SHARE_OF_LOOKS
from detcli.commands.promise.evaluation import RoundResult, Row, SeenAbove
from detcli.commands.promise.plan import Expectation, keeps_loss, round_error, rounds_of
from detcli.commands.promise.thresholds import candidate_thresholds, cut_below, highest_threshold

UNITS = 100_000
ANIMAL_SHARES = (0.3, 0.1, 0.05, 0.01)
LOSSES = (0.05, 0.1)
SAMPLES_ABOVE = (None, 400)
ROUNDS = 3
MISSES = 4
ERROR = 0.05
NOISE = 0.25  # standard deviation of what is added to the logits of scores
TOO_MANY_LOST = 1.3
LOWEST = 0.001  # the confidence of the records

most_animals = functools.cache(max_positives)


@dataclass
class Population:
    """The scores of all units, and which of them show an animal."""

    scores: np.ndarray
    has_animal: np.ndarray

    def lost_at(self, threshold):
        """How many animals are below a threshold."""
        return int(self.has_animal[self.scores < threshold].sum())


def read_pairs(records_path, labels_path):
    """Scores of pairs of an image and a class: of those that are there, and of the others."""
    labels = json.loads(labels_path.read_text())
    class_names = {category["id"]: category["name"] for category in labels["categories"]}
    image_ids = {}
    for image in labels["images"]:
        image_ids[image["file_name"].rpartition("/")[2]] = image["id"]
    objects = set()
    for annotation in labels["annotations"]:
        objects.add((annotation["image_id"], class_names[annotation["category_id"]]))
    scores_with = []
    scores_without = []
    for line in records_path.open():
        record = json.loads(line)
        image_id = image_ids[record["source"].rpartition("/")[2]]
        best_scores = {}
        for detection in record["detections"]:
            name = detection["class_name"]
            best_scores[name] = max(best_scores.get(name, 0.0), detection["score"])
        for name in class_names.values():
            score = best_scores.get(name, 0.0)
            if (image_id, name) in objects:
                scores_with.append(score)
            else:
                scores_without.append(score)
    return np.array(scores_with), np.array(scores_without)


def resampled(scores, count, random):
    """Scores drawn from others, with noise; what has no box has none."""
    drawn = random.choice(scores, count)
    clipped = np.clip(drawn, 1e-4, 1 - 1e-4)
    logits = np.log(clipped / (1 - clipped)) + random.normal(0, NOISE, count)
    noisy = np.maximum(1 / (1 + np.exp(-logits)), LOWEST)
    return np.where(drawn > 0, noisy, 0.0).round(6)


def make_population(pairs, animal_share, random):
    """A population with a share of animals."""
    animals = round(UNITS * animal_share)
    with_animal = resampled(pairs[0], animals, random)
    without = resampled(pairs[1], UNITS - animals, random)
    has_animal = np.arange(UNITS) < animals
    return Population(np.concatenate([with_animal, without]), has_animal)


def judge(population, grid, dealt, round_number, plan, above):
    """The result of a round, as `check` computes it.

    Args:
        population: The units.
        grid: The thresholds.
        dealt: The units that were looked at below, up to this round.
        round_number: The number of the round.
        plan: How many units each round has.
        above: What is seen above.
    """
    is_sampled = above.looked_at < above.units
    error = split_error(
        ERROR,
        loss_count=1,
        round_number=round_number,
        round_count=len(plan),
        further_bound_count=int(is_sampled),
    )
    scores = population.scores[dealt]
    has_animal = population.has_animal[dealt]
    rows = []
    for threshold in grid:
        is_below = scores < threshold
        units_below = int((population.scores < threshold).sum())
        misses = int((is_below & has_animal).sum())
        drawn = int(is_below.sum())
        lost = units_below
        if drawn:
            lost = most_animals(misses, units=units_below, drawn=drawn, error=error)
        seen = above.at_least + int((~is_below & has_animal).sum())
        share = lost / max(lost + seen, 1)
        row = Row(
            threshold=threshold,
            units_below=units_below,
            dealt=drawn,
            misses=misses,
            max_lost=lost,
            animals_seen=seen,
            share=share,
            all_misses=misses,
            all_animals_seen=seen,
        )
        rows.append(row)
    return RoundResult(round_number, error, tuple(rows), above, None)


def review(population, grid, plan, loss, sample_above, random):
    """The highest threshold that a review promises, or 0, and how many units it looks at."""
    below = np.flatnonzero(population.scores < grid[-1])
    above = np.flatnonzero(population.scores >= grid[-1])
    animals_above = int(population.has_animal[above].sum())
    seen_above = SeenAbove(len(above), len(above), animals_above, animals_above)
    if sample_above is not None and sample_above < len(above):
        hits = int(population.has_animal[random.choice(above, sample_above, replace=False)].sum())
        at_least = min_positives(
            hits, units=len(above), drawn=sample_above, error=FURTHER_BOUND_SHARE * ERROR
        )
        seen_above = SeenAbove(len(above), sample_above, hits, at_least)
    drawn = random.choice(below, sum(plan), replace=False)
    best_threshold = 0.0
    looked_at = 0
    for round_number, size in enumerate(plan, start=1):
        looked_at += size
        result = judge(population, grid, drawn[:looked_at], round_number, plan, seen_above)
        row = result.highest_row(loss)
        if row is not None:
            best_threshold = max(best_threshold, row.threshold)
        if best_threshold == grid[-1]:
            break
    return best_threshold, looked_at


def best_possible(population, loss):
    """The share of units that a perfect review could put aside."""
    animals = int(population.has_animal.sum())
    highest = None
    for threshold in np.unique(population.scores[population.has_animal]):
        lost = population.lost_at(threshold)
        if keeps_loss(lost, animals - lost, loss):
            highest = threshold
    if highest is None:
        return 0.0
    return float((population.scores < highest).mean())


def too_high(population, loss):
    """A threshold at which 1.3 times as many animals are lost as may be."""
    animal_scores = np.sort(population.scores[population.has_animal])
    score = animal_scores[int(TOO_MANY_LOST * loss * len(animal_scores))]
    return cut_below(population.scores, max(float(score), 2 * LOWEST))


def measure(population, below, animal_share, loss, sample_above, reviews, random):
    """A row of the table."""
    grid = candidate_thresholds(population.scores, below)
    error = ERROR
    if sample_above is not None:
        error *= 1 - FURTHER_BOUND_SHARE
    units_below = int((population.scores < below).sum())
    expectation = Expectation(
        units_below,
        round(animal_share * UNITS),
        loss,
        round_error(error, 1, ROUNDS),
    )
    first_round = expectation.look_count(MISSES)
    title = f"{animal_share:.0%} | {loss:.0%} | {sample_above or 'all'}"
    if first_round is None or first_round > MAX_SHARE_OF_LOOKS * units_below:
        return f"| {title} | not worth it: {first_round} looks |  |  |  |  |  |"
    plan = rounds_of(first_round, ROUNDS, units_below)
    animals = int(population.has_animal.sum())
    right = 0
    without_promise = 0
    put_aside = []
    looks = []
    for _ in range(reviews):
        threshold, looked_at = review(population, grid, plan, loss, sample_above, random)
        lost = population.lost_at(threshold)
        right += not threshold or keeps_loss(lost, animals - lost, loss)
        without_promise += not threshold
        put_aside.append((population.scores < threshold).mean() if threshold else 0.0)
        looks.append(looked_at)
    true_loss = population.lost_at(below) / animals
    return (
        f"| {title} | {' + '.join(map(str, plan))} | {true_loss:.1%} | {right / reviews:.1%} | "
        f"{without_promise / reviews:.1%} | {np.mean(put_aside):.1%} | "
        f"{best_possible(population, loss):.1%} | {np.mean(looks):,.0f} |"
    )


def main():
    from pathlib import Path

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--reviews", type=int, default=300)
    parser.add_argument("--too-high", action="store_true")
    options = parser.parse_args()
    random = np.random.default_rng(1)
    pairs = read_pairs(options.records, options.labels)
    blind = (pairs[0] == 0).mean()
    print(f"{len(pairs[0])} with an object, {blind:.1%} of them without a box; {len(pairs[1])} not")
    print("| animals | loss | above | plan | lost at below | right | none | aside | best | looks |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for animal_share in ANIMAL_SHARES:
        population = make_population(pairs, animal_share, random)
        for loss in LOSSES:
            for sample_above in SAMPLES_ABOVE:
                below = highest_threshold(population.scores, animal_share)
                if options.too_high:
                    below = too_high(population, loss)
                row = measure(
                    population, below, animal_share, loss, sample_above, options.reviews, random
                )
                print(row, flush=True)


if __name__ == "__main__":
    main()
