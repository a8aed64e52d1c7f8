"""The options of Config: what each declaration promises."""

import pickle
from pathlib import Path

import pytest

from detcli.config.config import Config, Settings, effective_conf
from detcli.config.differences import differences
from detcli.config.inputs import InputOptions
from detcli.config.option import config_from, options_of, panel, values_of
from detcli.config.values import Format
from detcli.core.errors import UsageError

OPTIONS = options_of(Config)
TYPED = {name: option for name, option in OPTIONS.items() if option.names}
TEXTS = {
    "conf": "0.75",
    "nms": "none",
    "region": "0,0.5,1,1",
    "tile": "640,overlap=0.123456789",
    "gpu_mem_limit": "2GiB",
    "device": "cpu,cuda:1",
    "zone": "a=0,0,1,0,1,0.123456789",
    "line": "b=0,0,1,1",
    "ignore": "site7/**=0,0,1,0,1,0.123456789",
    "track": "ocsort,conf=0.123456789",
    "labels": "score",
    "crop_margin": "12.5%",
    "on": "ray",
    "shards": "2/3",
    "format": "jsonl",
    "output": "boxes/",
}
BY_KIND = {bool: True, int: 7, float: 0.75}
NEEDED = {
    "on": ["output"],
    "shards": ["output"],
    "shard_size": ["output"],
    "extend": ["output"],
    "retry_failed": ["output"],
}


def needed(name):
    """What an option needs, and what that needs."""
    names = list(NEEDED.get(name, []))
    for alternatives in OPTIONS[name].needs:
        first_alternative = alternatives.split()[0]
        names.append(first_alternative)
        names += needed(first_alternative)
    return names


def other_value(name):
    """A value of an option that is not its default."""
    option = OPTIONS[name]
    if name == "class_conf":
        return (("person", 0.5), (3, 0.25))
    text = (
        TEXTS.get(name)
        or BY_KIND.get(option.value_type)
        or str((list(option.choices) + [name])[len(option.choices) // 2])
    )
    return option.parse_value(text)


def other_values(names):
    """Values that are not the defaults, by name of an option."""
    return {name: other_value(name) for name in names}


def config_with(name, **values):
    """A Config with another value of an option, and what that needs."""
    return config_from(Config, other_values(list(needed(name)) + [name]) | values)


def test_a_group_has_to_say_whether_it_affects_detections():
    with pytest.raises(TypeError, match="affects_detections"):
        panel(InputOptions(), "Input")  # type: ignore[call-arg]


def test_one_name_for_all():
    names = []
    for option in TYPED.values():
        assert option.names[-1] == option.flag
        names += option.names
    assert len(names) == len(set(names))
    assert set(OPTIONS) - set(TYPED) == {"source", "class_conf"}
    common_options = [option for option in OPTIONS.values() if option.common]
    assert 10 <= len(common_options) <= 14


def test_rules_name_options():
    for option in OPTIONS.values():
        needed_names = " ".join(option.needs).split()
        for name in needed_names + list(option.excludes) + list(option.overridden_by):
            assert name in OPTIONS, option.name
        # `collect_values` drops options in this order.
        names = list(OPTIONS)
        for needed_name in needed_names:
            if OPTIONS[needed_name].needs:
                assert names.index(needed_name) < names.index(option.name), option.name


@pytest.mark.parametrize("name", OPTIONS)
def test_a_value_survives_its_way_to_another_process(name):
    config = config_with(name)
    assert values_of(config)[name] != values_of(Config())[name]
    received = pickle.loads(pickle.dumps(config))  # noqa: S301 - its own
    assert received == config
    assert hash(received) == hash(config)


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("max_det", "3.5", "--max-det: '3.5' is not a valid int"),
        ("max_det", True, "--max-det: 'True' is not a valid int"),
        ("max_det", [3], "is not a valid int"),
        ("vid_stride", "0", "--vid-stride: 0 is not in the range x>=1"),
        ("every", "0s", "--every: 0.0 is not in the range 0.001<=x<=3600"),
        ("every", "1x", "--every: '1x' is not a time"),
        ("shard_size", "1000000001", "not in the range 1<=x<=1000000000"),
        ("start", "nan", "--start: 'nan' is not a valid float"),
        ("start", "-1", "--start: -1.0 is not in the range x>=0"),
        ("end", "inf", "is not a valid float"),
        ("strict", "maybe", "is not a valid bool"),
        ("blur_with", "fog", "--blur-with: 'fog' is not one of 'blur', 'pixelate', 'fill'"),
        ("classes", " , ", "--classes: ' , ' is an empty list"),
        ("device", "banana", "unknown device 'banana'"),
        ("save", "-", "--save cannot write to standard output"),
        ("report", "s3:/bucket/a", "--report cannot write to an object store"),
        ("shards", "4/3", "--shards 4/3 is not a share"),
        ("on", "local:0", "--on local:0 names nothing to run on"),
        ("on", "local:1025", "--on local:1025 asks for more than 1024 processes"),
        ("on", "local:" + "9" * 5000, "asks for more than 1024 processes"),
        ("workers", "1025", "--workers: 1025 is not in the range 1<=x<=1024"),
    ],
)
def test_what_is_no_value_is_refused(name, raw, says):
    with pytest.raises(UsageError) as caught:
        OPTIONS[name].parse_value(raw)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"max_det": 3.5},
        {"vid_stride": 0},
        {"source": "a.jpg"},
        {"save": "-"},
        {"gpu_mem_limit": 5},
        {"device": "cpu"},
    ],
)
def test_python_cannot_make_what_the_line_cannot(values):
    with pytest.raises((UsageError, AttributeError)):
        config_from(Config, values)


def rules():
    """Pairs of options of which the first needs or excludes the second, with that verb."""
    pairs = []
    for name, option in OPTIONS.items():
        for needed_names in option.needs:
            for needed_name in needed_names.split():
                pairs.append((name, needed_name, "needs"))
        for excluded_name in option.excludes:
            pairs.append((name, excluded_name, "excludes"))
    return pairs


@pytest.mark.parametrize(("name", "second", "verb"), rules())
def test_rules_hold_wherever_a_config_is_made(name, second, verb):
    values = {name: other_value(name)}
    if verb == "excludes":
        values[second] = "boxes.jsonl"
        if second != "output":
            values[second] = other_value(second)
        values |= other_values(needed(name) + needed(second))
    with pytest.raises(UsageError) as caught:
        config_from(Config, values)
    assert OPTIONS[name].flag in str(caught.value)
    assert OPTIONS[second].flag in str(caught.value)
    assert caught.value.hint
    if verb == "needs":
        assert config_with(name, **{second: other_value(second)})


NOT_IN_SHARDS = [name for name, option in OPTIONS.items() if not option.sharded]


@pytest.mark.parametrize("name", NOT_IN_SHARDS)
def test_what_a_run_in_shards_cannot_have(name):
    with pytest.raises(UsageError, match="does not go with a run in shards"):
        config_with(name, output="boxes/")


@pytest.mark.parametrize(
    "values",
    [
        {"output": "boxes/", "format": Format.PARQUET},
        {"resume": Path("boxes.jsonl"), "format": Format.PARQUET},
    ],
)
def test_the_refusal_of_parquet_names_the_merge_that_writes_it(values):
    with pytest.raises(UsageError) as caught:
        config_from(Config, values)
    assert "detcli merge boxes/ --format parquet" in caught.value.hint


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"extend": True}, "are for runs in shards"),
        ({"output": "a/", "format": Format.CSV}, "parts are JSON Lines"),
        ({"output": "a/", "format": Format.PARQUET}, "parts are JSON Lines"),
        ({"resume": other_value("resume"), "format": Format.CSV}, "writes JSON Lines"),
        ({"resume": other_value("resume"), "format": Format.PARQUET}, "writes JSON Lines"),
        ({"save_coco": other_value("save"), "output": "./save"}, "is given twice"),
        ({"output": "s3://bucket"}, "names no object"),
    ],
)
def test_rules_that_no_pair_of_rows_can_say(values, says):
    with pytest.raises(UsageError, match=says):
        config_from(Config, values)
    assert config_from(Config, {"output": "s3://bucket/"}).outputs.in_shards


@pytest.mark.parametrize(
    "name", ["read", "show", "save", "save_crops", "save_dataset", "report", "save_txt"]
)
def test_full_pixels_are_decoded_where_they_are_needed(name):
    assert config_with(name, fast_decode=True).decodes_fast is (name == "save_txt")
    assert not config_with(name).decodes_fast


BEFORE = {"model": "a", "model_sha256": "0" * 64, "conf": 0.25, "classes": [], "max_det": 300}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"conf": 0.5}, ["conf 0.25 instead of 0.5"]),
        ({"model_sha256": "1" * 64}, ["another file of the model"]),
        ({"classes": list(range(50))}, ["another classes"]),
        ({"model": "x", "conf": 1}, ['model "a" instead of "x"', "conf 0.25 instead of 1"]),
        ({"vid_stride": 1}, []),  # which an earlier version did not have
        ({"vid_stride": 2}, ["vid_stride 1 instead of 2"]),
        ({"preprocess": "stretch"}, []),  # nor this, which has no default
    ],
)
def test_differences_are_named(changes, expected):
    assert differences(BEFORE, BEFORE | changes) == expected
    assert differences({"half": True, "track": "ocsort"}, {}) == ["half true instead of false"]


def test_the_conf_of_the_settings_counts_before_the_recommended_one():
    assert effective_conf(Settings(conf=0.0), 0.4) == 0.0
    assert effective_conf(Settings(), 0.4) == 0.4
    assert effective_conf(Settings(), None) == 0.25
