"""The predictor of a MONAI bundle under the name that bundles have; the hospital's wheel has it."""

from silofl.command import HOSPITAL_WHEEL, hand_on

__getattr__ = hand_on(__name__, "silofl_hospital.inference.bundle", HOSPITAL_WHEEL)
