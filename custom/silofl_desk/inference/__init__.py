"""Export of a super model as a MONAI bundle."""
