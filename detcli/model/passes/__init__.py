"""Graph passes, one a module: each takes a model and returns a new one.

They compose, leave the model they are given as it was, and twice is the same as once.

| pass                | what it does                                                              |
| ------------------- | ------------------------------------------------------------------------- |
| `infer_shapes`      | the shapes of intermediate tensors are written into the graph             |
| `cut`               | one tensor becomes the only output, and what it does not need is dropped  |
| `guard_transposes`  | no Transpose feeds an output directly                                     |
| `set_batch`         | the batch becomes another number, or dynamic                              |
| `set_image_size`    | the input takes pictures of another size                                  |
| `set_metadata`      | entries of the metadata, class names among them                           |
| `to_half`           | float16 instead of float32, but where that would overflow                 |
| `to_int8`           | the convolutions in 8 bits, by QuantizeLinear and DequantizeLinear        |
| `append_selection`  | the selection as nodes of the graph: `[B, K, 6]`                          |

The last seven are imported from their modules: what every start needs stays small.
"""

from detcli.model.passes.cut import cut
from detcli.model.passes.editing import infer_shapes

__all__ = ["cut", "infer_shapes"]
