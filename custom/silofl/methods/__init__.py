"""What an algorithm sends beside the model, one file each, with its server half and its site half."""
