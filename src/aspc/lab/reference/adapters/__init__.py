"""Adapters: one per reference trainer."""
