"""Local folders and object stores."""
