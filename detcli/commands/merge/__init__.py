"""`detcli merge`: the parts of a run in shards as one output."""
