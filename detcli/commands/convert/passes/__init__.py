"""Graph passes, one a file: each takes a model and returns a new one.

Passes compose, leave their input unchanged, and are idempotent. `steps.py` puts them in order; the
two that other commands need as well, `cut` and `infer_shapes`, are in `detcli/model/editing.py`.

| pass                | what it does                                               |
| ------------------- | ---------------------------------------------------------- |
| `append_selection`  | appends the selection as nodes: `[B, K, 6]`                |
| `guard_transposes`  | keeps a Transpose from feeding an output directly          |
| `set_batch`         | changes the batch size, or makes it dynamic                |
| `set_image_size`    | changes the input size                                     |
| `set_metadata`      | sets entries of the metadata, class names among them       |
| `to_half`           | computes in float16, except where that would overflow      |
| `to_int8`           | computes convolutions in 8 bits                            |
"""
