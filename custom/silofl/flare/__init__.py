"""The only package that imports NVFlare: its executor, controller and filters, startup kits and the simulator."""

from silofl.base.environment import prepare_environment

prepare_environment()
