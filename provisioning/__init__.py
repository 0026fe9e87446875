"""A network of hospitals over mutual TLS: its kits, certificates and containers."""
