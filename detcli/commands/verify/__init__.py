"""`detcli verify`: compares the detections of two models, devices or selections."""
