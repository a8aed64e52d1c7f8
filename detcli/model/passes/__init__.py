"""Graph passes: each takes a model and returns a new one.

Passes compose, leave their input unchanged, and are idempotent. A pass is a file of its own, but
for the short ones in `editing`; `detcli/commands/convert/steps.py` puts them in order.

| pass                | file      | what it does                                                   |
| ------------------- | --------- | -------------------------------------------------------------- |
| `infer_shapes`      | editing   | writes the shapes of intermediate tensors into the graph       |
| `cut`               | editing   | makes one tensor the only output, drops what it does not need  |
| `set_metadata`      | editing   | sets entries of the metadata, class names among them           |
| `guard_transposes`  | guard     | keeps a Transpose from feeding an output directly              |
| `set_batch`         | batch     | changes the batch size, or makes it dynamic                    |
| `set_image_size`    | size      | changes the input size                                         |
| `to_half`           | half      | computes in float16, except where that would overflow          |
| `to_int8`           | int8      | computes convolutions in 8 bits                                |
| `append_selection`  | selection | appends the selection as nodes: `[B, K, 6]`                    |

Only the first two are imported here, to keep cold starts short.
"""

from detcli.model.passes.editing import cut, infer_shapes

__all__ = ["cut", "infer_shapes"]
