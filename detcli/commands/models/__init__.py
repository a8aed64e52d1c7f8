"""`detcli models`: the models that go by name."""
