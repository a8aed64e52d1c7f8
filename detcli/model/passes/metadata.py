"""What a model file says about itself."""

from collections.abc import Mapping, Sequence

from onnx import ModelProto

from detcli.model.passes.editing import copied


def set_metadata(model: ModelProto, entries: Mapping[str, str]) -> ModelProto:
    """Set entries of the metadata; an empty value removes one, the others stay in their order."""
    changed = copied(model)
    known = {entry.key: entry.value for entry in model.metadata_props}
    known.update(entries)
    del changed.metadata_props[:]
    for key, value in known.items():
        if value:
            changed.metadata_props.add(key=key, value=value)
    return changed


def names_entry(names: Sequence[str]) -> dict[str, str]:
    """The entry that holds class names, in the notation of Ultralytics' exporter."""
    return {"names": str(dict(enumerate(names)))}
