"""Shower files: published HDF5 layouts, reader, writer, sandbox."""
