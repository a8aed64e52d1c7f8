"""Commands: a folder or a file each, named as typed; `shared` is what several need."""
