"""Batches on a device, as the pipeline starts them."""

from colour_model import picture

from detcli import Settings
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
