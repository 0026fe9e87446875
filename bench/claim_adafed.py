"""AdaFed's claims: label shift, few rounds and many local epochs."""

from verdicts import Paper

PAPER = Paper("AdaFed (Chen et al., arXiv:2112.00734)")
