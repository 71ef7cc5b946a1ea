"""Attacks that learn to read updates before they read one."""
