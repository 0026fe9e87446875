"""Simulated hospitals: anatomy, scanners and stains, without a patient."""
