"""``silofl withdraw``: write the signed list of the network's withdrawn models, which clinics lay beside a model."""

import argparse
import json
import re
from datetime import UTC, datetime

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
    kit, earlier = read_kit(options.kit), read_json_document(options.list)
    if kit.role not in ROLES:
        raise ConfigError(f"--kit must be of a study lead, not of {kit.name}; name the lead's kit")
    for model in options.models:
        if not re.fullmatch(SHA256, model):
            raise ConfigError(f"MODEL must be a fingerprint of 64 digits, as in model.json, not {quote_value(model)}")
    today = datetime.now(UTC).date().isoformat()
    known = Withdrawn(today, {}, 0)
    try:
        if earlier is not ABSENT:
            known = read_record(Withdrawn, json.loads(earlier["content"]), "content")
    except (TypeError, KeyError, ValueError, ConfigError):
        raise ConfigError(f"--list must be a list that withdraw wrote, not {options.list}; name another") from None
    models = {**known.models} | dict.fromkeys(options.models, options.reason)
    if options.undo:
        if others := {*options.models} - known.models.keys():
            raise ConfigError(f"MODEL must be on {options.list}, not {min(others)}; leave it out")
        models = {model: reason for model, reason in known.models.items() if model not in options.models}
    key = load_pem_private_key(kit.key_path.read_bytes(), None)
    if not isinstance(key, RSAPrivateKey):
        raise ConfigError(f"the key of {kit.name} must be RSA, as provisioning makes it; it is not: make a new kit")
    signed = sign_list(Withdrawn(today, models, known.number + 1), kit.certificate_path.read_bytes(), key)
    write_json(options.list, signed)
    count = f"{len(models)} withdrawn model{'s' * (len(models) != 1)}"
    print(f"{options.list} names {count}; give it to all who predict, with rootCA.pem of your kit")
    return ExitCode.COMPLETE


def sign_list(listed: Withdrawn, certificate: bytes, key: RSAPrivateKey) -> dict[str, str]:
    """Return the content of withdrawn.json, by a lead's certificate, PEM, and key."""
    content = json.dumps(dump_record(listed), sort_keys=True)
    signature = key.sign(content.encode(), PKCS1v15(), HASH()).hex()
    return {"content": content, "certificate": certificate.decode(), "signature": signature}
