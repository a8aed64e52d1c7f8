"""ONNX Runtime, strictly: what was asked for runs, or an error says why not.

load.py            imports it
session.py         makes a session, runs it
providers.py       what its GPU providers are told
libraries.py       whether their shared libraries are there, and what brings those that are not
placement.py       where the nodes of a session went
native_output.py   keeps what native libraries print off standard output
"""
