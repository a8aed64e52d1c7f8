"""Shards: a run that is cut into parts, each worked and published once, wherever.

    names -> manifest.jsonl -> shards -> part-00000.jsonl, part-00001.jsonl, ... -> merge

The manifest is written down first, see `manifest.py`. Engines only work shards, in processes of
this machine or elsewhere; whatever dies, each part is published once, see `store.py`.
"""
