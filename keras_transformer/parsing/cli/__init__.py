"""The commands and options of parsing."""
