"""HarmoFL's claims: appearance differs between hospitals, content does not."""

from verdicts import Paper

PAPER = Paper("HarmoFL (Jiang et al., AAAI 2022)")
