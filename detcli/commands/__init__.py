"""Commands: a folder or a file each, named as the user types them; `shared` is what several need."""
