"""The networks: generators and discriminators, their physics constraints and their loss."""

from caloscale.models.arithmetic import flops, flops_per_layer
from caloscale.models.networks import Networks, build, count_parameters, latent, noise_size

__all__ = ["Networks", "build", "count_parameters", "flops", "flops_per_layer", "latent", "noise_size"]
