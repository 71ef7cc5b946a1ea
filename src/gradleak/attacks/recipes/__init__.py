"""One paper, one file: a function that returns a composition."""
