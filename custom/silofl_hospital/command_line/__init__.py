"""The arguments of all commands, a file a role: read and checked before torch, MONAI and NVFlare are imported."""
