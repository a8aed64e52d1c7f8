"""ONNX Runtime, strictly: what was asked for runs, or an error says why not.

    session.py     makes sessions and runs them; refuses one that is not where it was asked to be
    providers.py   the options of its GPU providers
    libraries.py   whether their shared libraries load, and what installs those that do not

This imports ONNX Runtime; everything else imports it from here.
"""

import os

from detcli.core.errors import loading

# ONNX Runtime 1.31 keeps a device id and a database of telemetry in the user's cache folder. Only
# this variable, set before the import, keeps it from doing so; a value that is set already stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = ["onnxruntime", "runtime_errors"]

HINT = (
    "onnxruntime and onnxruntime-gpu overwrite each other's files: pip uninstall both, then "
    "install one of them again"
)

with loading("ONNX Runtime", HINT):
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors
