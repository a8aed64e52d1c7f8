"""`detcli convert`: converts a model file and compares the result with the original."""
