"""COCO's names written on Windows: predict and eval read them alike."""

import json

from json_lines import column_of
from labelled import MIXED, edit_json, write_coco


def test_predict_finds_the_ids_of_names_that_eval_finds(invoke, make_model, tmp_path):
    data = write_coco(tmp_path, MIXED)
    folder = tmp_path / "images" / "label"
    folder.mkdir()
    for path in sorted((tmp_path / "images").glob("*.png")):
        path.rename(folder / path.name)

    def to_windows(content):
        for image in content["images"]:
            image["file_name"] = f"label\\{image['file_name']}"

    edit_json(data, to_windows)
    model = make_model()
    results = tmp_path / "results.json"
    arguments = ("--device", "cpu", "-q", "--save-coco", results)

    invoke("eval", model, "--data", data, "--conf", 0.3, arguments)
    by_eval = json.loads(results.read_text())
    result = invoke("predict", folder, "-m", model, "--conf", 0.3, arguments, "--coco-images", data)
    by_predict = json.loads(results.read_text())

    assert result.returncode == 0
    assert result.stderr == ""
    assert by_predict == by_eval
    assert len(set(column_of(by_predict, "image_id"))) == len(MIXED) - 1
