"""The one form of a patient's name in which names are kept, and the key by which two spellings are one patient."""

import re
import unicodedata
from collections.abc import Iterable, Mapping

# A whole number that is written as a fraction, also with the comma of some countries.
WHOLE = re.compile(r"^([0-9]+)[.,]0+$")


def normalise_name(name: str) -> str:
    """Return a name as it is kept, so that two that look alike are one.

    Signs that nobody sees go (Unicode's category Cf, as a zero-width space), letters come in one form (NFKC: accents
    composed, letters of full width as plain ones), blanks at the ends go, and several between two words are one.
    """
    visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", visible).split())


def key_patient(name: str) -> str:
    """Return what two spellings of one patient share: no regard to capitals, nor to ``^`` and blanks at the end.

    DICOM parts the components of a name by ``^``, which programs append to a number too. 101.0 is 101, as pandas writes
    it in a column with a gap. Zeros at the beginning count: 007 and 7 may be two patients.
    """
    name = normalise_name(normalise_name(name).casefold())
    name = name.rstrip("^ ") or name
    return WHOLE.sub(r"\1", name)


def unify_patients(names: Iterable[str]) -> Mapping[str, str]:
    """Return for each spelling the first one of the same patient."""
    firsts: dict[str, str] = {}
    return {name: firsts.setdefault(key_patient(name), name) for name in names}
