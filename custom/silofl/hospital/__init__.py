"""What a hospital asks of its own machine, kit and data before it joins: one question a function."""
