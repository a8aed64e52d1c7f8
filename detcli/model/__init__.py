"""Model files: what a graph promises, how it is cut, and the cache of cut graphs."""
