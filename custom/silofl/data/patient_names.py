"""The one form of a patient's name, in which names are kept and compared."""

import unicodedata


def normalise_name(name: str) -> str:
    """Return a name as it is kept, so that two that look alike are one.

    Signs that nobody sees go (Unicode's category Cf, as a zero-width space), letters come in one form (NFKC: accents
    composed, letters of full width as plain ones), blanks at the ends go, and several between two words are one.
    """
    visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", visible).split())
