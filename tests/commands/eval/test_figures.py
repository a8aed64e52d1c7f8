import cv2
import numpy as np
import pytest
from comparisons import compared, random_images

from detcli.commands.eval.evaluator import Evaluator
from detcli.commands.eval.figures import FILES, curves_of, plot
from detcli.commands.eval.matches import IOU
from detcli.commands.eval.report import Confusion, Confusions
from detcli.core.errors import OutputError

pytestmark = pytest.mark.slow


def plotted(images, names, title="a model"):
    evaluator = Evaluator(images, range(len(names)))
    overall, by_category = evaluator.score()
    name_of = {None: None} | dict(enumerate(names))
    rows = []
    for (true, predicted), where in evaluator.confusions(0.3).items():
        rows.append(Confusion(name_of[true], name_of[predicted], len(where)))
    scores = []
    for index, category_score in by_category.items():
        scores.append((names[index], category_score))
    scores.append(("all", overall))
    class_ids = {name: class_id for class_id, name in enumerate(names)}
    return title, scores, Confusions(0.3, IOU, tuple(rows)), class_ids


def plot_evaluated(folder, images, names, title="a model"):
    """Draw the figures of an evaluation; returns the paths of the files."""
    title, scores, confusions, class_ids = plotted(images, names, title)
    return plot(folder, title, scores, confusions, class_ids)


@pytest.mark.parametrize("count", [3, 40])
def test_plots_are_images(count, tmp_path, random):
    names = [f"class {number}" for number in range(count)]
    written = plot_evaluated(tmp_path, random_images(random, categories=count), names)
    assert [path.name for path in written] == list(FILES)
    for path in written:
        image = cv2.imread(path)
        assert image.shape[1] > 500
        assert image.std() > 5  # something is drawn


def test_any_name_is_drawn(tmp_path, random):
    names = ["$\\frac", "_hidden", "$", "日本", "a" * 300, "\x1b[31m", "a\nb", "%s", "\\"]
    images = random_images(random, categories=len(names))
    assert len(plot_evaluated(tmp_path, images, names, title=" ".join(names))) == 3


def test_nothing_found_and_nothing_to_be_found(tmp_path):
    box = (0.0, 0.0, 10.0, 10.0)
    missed = compared(1, [(box, 0, {})], [])
    assert len(plot_evaluated(tmp_path, [missed], ["a"])) == 3
    false = compared(1, [], [(box, 0, 0.9)])
    assert len(plot_evaluated(tmp_path, [false], ["a"])) == 3
    assert len(plot_evaluated(tmp_path, [], ["a"])) == 3


def test_the_confusion_matrix_shows_counts_where_they_belong():
    from detcli.commands.eval.figures import _confusion_matrix

    rows = (Confusion("a", "b", 5), Confusion("b", None, 3), Confusion(None, "a", 2))
    names, counts = _confusion_matrix(Confusions(0.3, IOU, rows))
    assert names == ["b", "a"]  # the most frequent first
    np.testing.assert_array_equal(counts, [[0, 0, 3], [5, 0, 0], [0, 2, 0]])


def test_a_folder_that_cannot_be_made(tmp_path, random):
    (tmp_path / "file").touch()
    images = random_images(random, 3, 1)
    with pytest.raises(OutputError):
        plot_evaluated(tmp_path / "file" / "folder", images, ["a"])


def test_curves_are_the_figures_of_the_evaluator(random):
    _, scores, confusions, _ = plotted(random_images(random, 20), list("abc"))
    precision, f1 = curves_of(scores, confusions.conf)
    by_name = dict(scores)
    for name, boxes, figure, heights in precision.lines:
        category_score = by_name[name]
        assert boxes == category_score.curve.boxes
        assert figure == category_score.metrics.map50
        np.testing.assert_allclose(heights, category_score.precision, atol=5e-4)
    for name, _, figure, heights in f1.lines:
        curve = by_name[name].curve
        expected = [curve.quality(step / 100).f1 for step in range(101)]
        np.testing.assert_allclose(heights, expected, atol=5e-4)
        assert figure == pytest.approx(curve.f1.max(), abs=5e-4)
    assert [line[0] for line in f1.lines] == ["a", "b", "c", "all"]


def test_the_most_confused_pairs_are_of_two_classes():
    from detcli.commands.eval.figures import _most_confused

    rows = [
        Confusion("a", "a", 90),
        Confusion("a", None, 80),
        Confusion(None, "b", 70),
        Confusion("a", "b", 2),
        Confusion("b", "a", 5),
    ]
    for number in range(12):
        rows.append(Confusion("c", f"class {number}", 1))
    pairs = _most_confused(Confusions(0.3, IOU, tuple(rows)))
    assert pairs[:2] == [("b", "a", 5), ("a", "b", 2)]
    assert len(pairs) == 10


def test_curves_have_the_colours_of_classes_and_name_the_dotted_line(random):
    from detcli.commands.eval.figures import _class_colours, _draw_curves

    title, scores, confusions, _ = plotted(random_images(random, 20), list("abc"))
    _, f1 = curves_of(scores, confusions.conf)
    colours = _class_colours({"a": 7, "b": 0, "c": 1})
    assert colours["b"] == "#ee2244"  # of class 0 on annotated images
    figure = _draw_curves(title, f1, colours)
    [axes] = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_texts()[-1].get_text() == "best F1 of all, at 0.3"
    drawn_colours = {line.get_color() for line in axes.get_lines()}
    assert drawn_colours == set(colours.values()) | {"black"}
