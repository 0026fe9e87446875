"""Commands for a hospital's IT: check machine, kit and data before joining a study, and delete a study's files."""
