"""The one training loop and the one evaluation, with losses, metrics, devices and seeds."""
