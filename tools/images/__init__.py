"""The images of caloscale: built by Buildah from the files in docker/, pushed, or kept as archives.

``python -m tools.images build``; ``archives()`` gives the files that nodes without a registry import.
"""

from tools.images.buildah import archives
from tools.images.targets import ImageError

__all__ = ["ImageError", "archives"]
