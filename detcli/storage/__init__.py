"""Files, objects in buckets, and the cache: written whole, or not at all."""
