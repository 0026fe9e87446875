"""SiloFL: federated learning of medical-image models across hospitals, on NVFlare."""

__version__ = "0.2.0"
