"""Objects in stores, `s3://`, `gs://` and `az://`, through obstore: plain runs import nothing.

source/object_store.py lists and reads pictures with it, shards/object_store.py publishes parts.
"""
