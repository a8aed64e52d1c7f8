"""Batches on a device, as the pipeline starts them."""

import pytest
from colour_model import picture

from detcli import Settings
from detcli.core.errors import UsageError
from detcli.core.geometry import Picture
from detcli.run.batches import BatchDetector


def test_an_observer_is_called_for_each_stage_until_removed(make_model):
    told = []
    images = [*map(Picture.whole, (picture(("red", 2, 3)), picture(("blue", 0, 1))))]
    with BatchDetector(
        make_model(batch=None), device="cpu", settings=Settings(conf=0.6)
    ) as detector:
        expected = [found.xyxy.tolist() for found in detector.submit(images)()]
        detector.observe(told.append)
        assert [found.xyxy.tolist() for found in detector.submit(images)()] == expected
        assert told == ["remainder", "preprocess", "network", "selection", "remainder"]
        detector.observe(None)
        detector.submit(images)()
        assert len(told) == 5
        detector.observe(told.append)
        with detector.clone() as other:
            other.submit(images)()
        assert len(told) == 5  # a clone has no observer


def test_a_class_has_one_confidence_by_whatever_name(make_model):
    model = make_model()
    for class_conf in ((("red", 0.3), ("0", 0.4)), ((0, 0.3), ("red", 0.4))):
        with pytest.raises(UsageError, match=r"has two numbers for red: 0\.3 and 0\.4"):
            BatchDetector(model, device="cpu", settings=Settings(class_conf=class_conf))


def test_a_confidence_replaces_the_one_that_the_model_recommends(make_model):
    metadata = {"names": "['red', 'green', 'blue']", "detcli.conf": "0.6,red=0.3"}
    settings = Settings(class_conf=(("red", 0.4),))
    with BatchDetector(make_model(metadata=metadata), device="cpu", settings=settings) as detector:
        assert detector.class_conf == {0: 0.4}
