"""The only package that imports NVFlare: its executor, controller and filters, startup kits and the simulator."""
