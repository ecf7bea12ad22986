"""Adapters for the traces of reference trainers, one per algorithm or family of algorithms."""
