"""Shards: a run that is cut into parts, each worked and published once, wherever.

    names -> manifest.jsonl -> shards -> part-00000.jsonl, part-00001.jsonl, ... -> merge

The manifest is written down first. Engines only work shards, in processes of this machine or
elsewhere; whatever dies, each part is published once.

    names.py, manifest.py, begin.py     what there is to do, also where a run is resumed
    store.py, object_store.py           where manifest and parts are: on a disk, in an object store
    engines.py, local.py, ray.py        what works shards
    workers.py, work.py                 one worker, and how it works a shard
    schedule.py                         which worker gets which shard
    parts.py, merging.py                the records of a shard, and of all
"""
