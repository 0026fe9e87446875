"""FedSM's claims: the gap to centralised training, and a hospital that took no part."""

from verdicts import Paper

PAPER = Paper("FedSM (Xu et al., CVPR 2022)")
