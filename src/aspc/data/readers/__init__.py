"""Readers of foreign files."""
