"""Measurement and profiling of training speed."""
