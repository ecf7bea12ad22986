"""Verification of algorithms against their authors' implementations, by replaying recorded training steps."""
