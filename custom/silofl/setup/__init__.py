"""What this installation and this site are: site.yaml, the packages, and extensions from elsewhere."""
