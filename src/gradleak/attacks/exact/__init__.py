"""Attacks that solve instead of search."""
