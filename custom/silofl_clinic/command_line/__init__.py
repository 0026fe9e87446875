"""The clinic's commands and their arguments, read and checked before torch and MONAI are imported."""
