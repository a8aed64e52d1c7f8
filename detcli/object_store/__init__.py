"""Objects in stores, `s3://`, `gs://` and `az://`, through obstore: plain runs import nothing."""
