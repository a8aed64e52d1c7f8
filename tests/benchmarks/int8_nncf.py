"""Quantises a model with NNCF, the rival of `detcli convert --int8`; `detcli eval` measures both.

    pip install nncf
    python tests/benchmarks/int8_nncf.py MODEL FOLDER OUT

NNCF calibrates on the images in FOLDER and corrects biases, as it does by default; the end of the
network stays in float32, as in detcli. MODEL has a static input and is float32.
"""

import argparse
from pathlib import Path

import nncf

from detcli.commands.convert.passes import decode_nodes, score_convolutions
from detcli.commands.convert.run import load_images
from detcli.commands.convert.steps import FLOAT_DEPTH, serialised
from detcli.commands.convert.value_ranges import tensor_of
from detcli.model.editing import infer_shapes
from detcli.model.file import ModelFile
from detcli.model.recognise import read_graph
from detcli.source.sources import Sources


def main() -> None:
    """Quantise and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folder")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    model = ModelFile.read(options.model).original
    with_shapes = infer_shapes(model)
    reading = read_graph(with_shapes, options.model.name, None)
    head = reading.adaptation.head
    boxes = [piece.tensor for piece in head.boxes]
    scores = [piece.tensor for piece in head.scores]
    exact = decode_nodes(with_shapes.graph, boxes)
    exact |= score_convolutions(with_shapes.graph, scores, FLOAT_DEPTH)
    exact_names = []
    for node in model.graph.node:
        if node.output[0] in exact:
            exact_names.append(node.name)
    with Sources([options.folder]) as sources:
        images = list(load_images(sources, lambda: None))
    name = reading.contract.input_name
    tensors = [tensor_of(image, reading.contract) for image in images]
    quantised = nncf.quantize(
        model,
        nncf.Dataset(tensors, lambda tensor: {name: tensor}),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(tensors),
        ignored_scope=nncf.IgnoredScope(names=exact_names),
    )
    options.out.write_bytes(serialised(quantised))


if __name__ == "__main__":
    main()
