"""The protocol of a part, and the parts that no algorithm owns."""
