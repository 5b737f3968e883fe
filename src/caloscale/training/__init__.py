"""Training of the networks on prepared showers: `loop.train`."""
