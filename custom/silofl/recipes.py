"""NVFlare recipes under their public name; the desk's wheel has them."""

from silofl.command_line.command import DESK_WHEEL, hand_on

__getattr__ = hand_on(__name__, "silofl_desk.recipes", DESK_WHEEL)
