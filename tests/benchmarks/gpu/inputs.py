"""What is selected from: heads of a network, real enough for a stopwatch."""

import numpy as np


def noise(generator, shape):
    """Scores from 0 to 1, all equally likely: thousands of anchors above any confidence."""
    return generator.random(shape, np.float32)


def like_a_detector(generator, shape):
    """Low scores everywhere, and around some places the high ones of an object."""
    _, classes, anchors = shape
    scores = generator.random(shape, np.float32)
    scores *= scores
    scores *= scores
    scores *= scores
    scores *= scores
    scores *= np.float32(0.2)
    found = min(4, anchors)
    for head in scores:
        for place in generator.integers(0, anchors - found + 1, 12):
            best = generator.uniform(0.3, 0.95, found).astype(np.float32)
            head[generator.integers(classes), place : place + found] = best
    return scores


SCORES = {"noise": noise, "like a detector's": like_a_detector}


def make_heads(generator, shape, kind, dtype, canvas=640):
    """Heads `(B, 4 + C, N)` with boxes x1, y1, x2, y2 on a canvas, and scores of some kind."""
    batch, rows, anchors = shape
    corner = generator.random((batch, 2, anchors), np.float32) * np.float32(canvas * 0.8)
    side = generator.random((batch, 2, anchors), np.float32) * np.float32(canvas * 0.2)
    scores = SCORES[kind](generator, (batch, rows - 4, anchors))
    return np.concatenate([corner, corner + side, scores], axis=1).astype(dtype)
