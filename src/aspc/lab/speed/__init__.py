"""Measurement of training speed."""
