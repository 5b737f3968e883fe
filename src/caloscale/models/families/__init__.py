"""Families of generators: one folder each, or a package of its own (`family`)."""
