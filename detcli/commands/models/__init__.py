"""`detcli models`: the models with names."""
