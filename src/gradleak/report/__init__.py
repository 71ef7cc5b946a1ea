"""What a person sees: a leaf, nothing else depends on it."""
