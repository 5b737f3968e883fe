"""The networks: families of generators, their layers, and the files of trained ones."""

from caloscale.models.families.family import Family, Networks, build, count_parameters, family_of, latent, noise_size

__all__ = ["Family", "Networks", "build", "count_parameters", "family_of", "latent", "noise_size"]
