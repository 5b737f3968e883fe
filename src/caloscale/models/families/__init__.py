"""Families of generators (`family`), one folder for each. Other packages may add families."""
