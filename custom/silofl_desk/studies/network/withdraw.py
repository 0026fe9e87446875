"""``silofl withdraw``: write the signed list of the network's withdrawn models, which clinics lay beside a model."""

import argparse
import json
import re
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256 as HASH
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from silofl.base.documents import ABSENT, read_json_document
from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl.base.files import write_json
from silofl.base.schema import dump_record, read_record
from silofl.base.settings import SHA256
from silofl.flare.kit import read_kit
from silofl_hospital.inference.withdrawn import ROLES, Withdrawn


def run(options: argparse.Namespace) -> int:
    """Add models to the list, or take them from it, and sign it anew; without a model it is only signed anew."""
    kit = read_kit(options.kit)
    # Clinics trust a lead's signature, and no hospital's.
    if kit.role not in ROLES:
        raise ConfigError(f"--kit must be of a study lead, not of {kit.name}; name the lead's kit")
    for model in options.models:
        # A slip of one digit would withdraw nothing, and nobody would notice.
        if not re.fullmatch(SHA256, model):
            raise ConfigError(f"MODEL must be a fingerprint of 64 digits, as in model.json, not {quote_value(model)}")
    today = datetime.now(UTC).date().isoformat()
    earlier = _read_list(options.list) or Withdrawn(today, {}, 0)
    models = dict(earlier.models)
    for model in sorted({*options.models}):
        if not options.undo:
            models[model] = options.reason
        elif model in models:
            del models[model]
        else:
            raise ConfigError(f"Model {model} is not on {options.list}. Leave it out.")
    key = load_pem_private_key(kit.key_path.read_bytes(), None)
    if not isinstance(key, RSAPrivateKey):
        raise ConfigError(f"The key of {kit.name} is no RSA key, as provisioning makes it. Make a new kit.")
    # Clinics refuse a list with a lower number than one that they have seen.
    listed = Withdrawn(today, models, earlier.number + 1)
    write_json(options.list, sign_list(listed, kit.certificate_path.read_bytes(), key))
    count = "1 withdrawn model" if len(models) == 1 else f"{len(models)} withdrawn models"
    print(f"{options.list} names {count}; give it to all who predict, with rootCA.pem of your kit")
    return ExitCode.COMPLETE


def _read_list(path: Path) -> Withdrawn | None:
    """Return the models on an earlier list, whose signature only the clinics check; None where there is no list."""
    document = read_json_document(path)
    if document is ABSENT:
        return None
    content = document.get("content") if isinstance(document, dict) else None
    try:
        return read_record(Withdrawn, json.loads(str(content)), "content")
    except (ValueError, ConfigError):
        raise ConfigError(f"{path} is no list that withdraw wrote. Name another with --list.") from None


def sign_list(listed: Withdrawn, certificate: bytes, key: RSAPrivateKey) -> dict[str, str]:
    """Return the content of withdrawn.json, by a lead's certificate, PEM, and key."""
    content = json.dumps(dump_record(listed), sort_keys=True)
    signature = key.sign(content.encode(), PKCS1v15(), HASH()).hex()
    return {"content": content, "certificate": certificate.decode(), "signature": signature}
