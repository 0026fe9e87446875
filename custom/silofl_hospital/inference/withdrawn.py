"""The list of withdrawn models, signed by a lead of the network: `predict` answers with none that stands in it.

It lies beside the super model's folder, with the root certificate of the network. Where both are missing, `predict`
says that nobody has checked; one without the other is refused.
"""

import json
from binascii import Error as NoHexadecimal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from silofl.base.documents import ABSENT, read_json_document
from silofl.base.errors import ConfigError, quote_value
from silofl.base.files import read_json, write_json
from silofl.base.schema import read_record
from silofl.inference.names import HEAD, HOME_STATISTICS

# The last holds the number of the newest list that was here.
FILE = "withdrawn.json"
ROOT = "rootCA.pem"
SEEN = "withdrawn.seen"
UNCHECKED = f"Nobody has checked whether the model was withdrawn: no {FILE} is beside it"
# Whose certificates may sign it: NVFlare's own name of the network's head, and that of study leads.
ROLES = ("project_admin", "lead")
# An older list may be one that somebody kept back.
GOOD_FOR = timedelta(days=92)
REMEDY = "ask the study lead for the list as silofl withdraw wrote it"


@dataclass(frozen=True)
class Withdrawn:
    """What a lead signs.

    Attributes:
        signed: The day, as 2026-11-29.
        models: Fingerprint of a super model -> why it was withdrawn.
        number: One more than that of the list before.
    """

    signed: str
    models: Mapping[str, str]
    number: int

    def __post_init__(self) -> None:
        """Refuse a day that is none."""
        date.fromisoformat(self.signed)


def check_not_withdrawn(folder: Path, fingerprint: str) -> bool:
    """Refuse a withdrawn super model; return whether there was a list to ask.

    Args:
        folder: The super model's, beside which the list and the root certificate lie.

    Raises:
        ConfigError: The model is withdrawn, or the list is missing beside its root, forged, stale, broken or replaced.
    """
    parent = folder.resolve().parent
    content = read_json_document(parent / FILE)
    root = parent / ROOT
    if content is ABSENT and not root.exists() and not (parent / SEEN).exists():
        return False
    if content is ABSENT or not root.exists():
        lacking = FILE if content is ABSENT else ROOT
        present = ROOT if content is ABSENT else FILE
        raise ConfigError(f"{lacking} is missing beside {present}; {REMEDY}, and for {ROOT} of the network")
    listed = _read_list(content, root)
    if datetime.now(UTC).date() - date.fromisoformat(listed.signed) > GOOD_FOR:
        raise ConfigError(f"{FILE} of {listed.signed} is older than {GOOD_FOR.days} days; {REMEDY} anew")
    if listed.number < (newest := read_json(parent / SEEN, int, absent=0)):
        # It may lack models that were withdrawn since.
        raise ConfigError(f"{FILE} is number {listed.number}, and number {newest} was here before; {REMEDY}")
    if listed.number > newest:
        # Who cannot write here cannot put an older list here either.
        with suppress(OSError):
            write_json(parent / SEEN, listed.number)
    facts = read_json(folder / HEAD, dict, absent={}).get("facts", {})
    # A model with home statistics is withdrawn with the model that it was made of.
    for model in (fingerprint, facts.get(HOME_STATISTICS, {}).get("of")):
        if model in listed.models:
            raise ConfigError(
                f"the super model {model[:16]} is withdrawn, as the lead signed on {listed.signed}: "
                f"{quote_value(listed.models[model])}; take the version that follows it"
            )
    return True


def _read_list(found: Any, root: Path) -> Withdrawn:  # noqa: ANN401 - JSON of any kind
    try:
        content = found["content"].encode()
        signer = x509.load_pem_x509_certificate(found["certificate"].encode())
        signature = bytes.fromhex(found["signature"])
        listed = read_record(Withdrawn, json.loads(content), FILE)
        issuer = x509.load_pem_x509_certificate(root.read_bytes())
    except (OSError, KeyError, TypeError, AttributeError, ValueError, NoHexadecimal, ConfigError) as error:
        raise ConfigError(f"{FILE} or {ROOT} is damaged ({type(error).__name__}); {REMEDY}") from None
    roles = [str(attribute.value) for attribute in signer.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)]
    public = signer.public_key()
    try:
        signer.verify_directly_issued_by(issuer)
        if not isinstance(public, RSAPublicKey) or not {*roles} & {*ROLES}:
            raise InvalidSignature
        public.verify(signature, content, PKCS1v15(), SHA256())
    except (InvalidSignature, ValueError, TypeError):
        raise ConfigError(f"{FILE} is signed by no lead of the network whose root is {ROOT}; {REMEDY}") from None
    day = date.fromisoformat(listed.signed)
    if not signer.not_valid_before_utc.date() <= day <= signer.not_valid_after_utc.date():
        raise ConfigError(f"{FILE} is signed on {day}, when the lead's certificate did not hold; {REMEDY} anew")
    return listed
