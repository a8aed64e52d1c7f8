"""Both sides run: two models, devices, decoders or selections."""
