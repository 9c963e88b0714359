"""Constraints: rules for the next token that every search can follow."""
