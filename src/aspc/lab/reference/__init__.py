"""Replay of reference traces."""
