"""Importing this makes the threads of ONNX Runtime sleep between runs.

They would spin for some milliseconds after each, on cores that other tests need.
"""

import onnxruntime


class InferenceSession(onnxruntime.InferenceSession):
    """A session whose threads wait without taking processor time."""

    def __init__(self, model, options=None, *arguments, **keywords):
        options = options or onnxruntime.SessionOptions()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        super().__init__(model, options, *arguments, **keywords)


onnxruntime.InferenceSession = InferenceSession
