"""The optional columns of a detection: in order, and of options and arrays that exist."""

import dataclasses

import pytest

from detcli.config.outputs import Outputs
from detcli.config.watched import Watched
from detcli.data.columns import DETECTED_COLUMNS, OPTIONAL_COLUMNS, DetectionJson
from detcli.data.detections import PER_OBJECT
from detcli.data.record import SettingsJson


def test_each_optional_field_of_a_detection_has_a_column_in_the_same_order():
    optional_keys = DetectionJson.__optional_keys__
    optional = [name for name in DetectionJson.__annotations__ if name in optional_keys]
    assert [column.name for column in OPTIONAL_COLUMNS] == optional


@pytest.mark.parametrize("column", DETECTED_COLUMNS, ids=lambda column: column.name)
def test_a_column_is_of_an_option_a_setting_and_an_array_that_exist(column):
    fields = list(dataclasses.fields(Watched)) + list(dataclasses.fields(Outputs))
    assert column.option in {field.name for field in fields}
    assert column.setting is None or column.setting in SettingsJson.__annotations__
    assert column.array in PER_OBJECT
