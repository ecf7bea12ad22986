"""The commands of `aspc`, one module per command."""
