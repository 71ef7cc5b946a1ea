"""Commands that print every figure in the README."""
