"""The only room that knows NVFlare: executor, controller, and the simulator as a command."""
