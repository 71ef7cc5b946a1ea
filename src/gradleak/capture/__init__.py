"""Updates from real systems."""
