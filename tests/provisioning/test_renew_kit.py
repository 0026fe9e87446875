from datetime import timedelta

import pytest

from provisioning import renew_kit
from provisioning.__main__ import main
from silofl.base.errors import ConfigError
from silofl.base.files import read_json
from silofl.flare.kit import read_kit


@pytest.mark.parametrize("name", ["north", "server", "lead@study.example.org"])
def test_only_the_renewed_certificate_changes(workspace, kits, files_of, name):
    before, old = files_of(kits), read_kit(kits / name)
    record, now = (
        read_json(workspace / "silofl" / "state" / "cert.json"),
        old.certificate.not_valid_before_utc + timedelta(days=350),
    )
    later = renew_kit.make_renewed_certificate(old, record["root_pri_key"], now)
    assert (later.subject, later.issuer) == (old.certificate.subject, old.certificate.issuer)
    assert later.public_key() == old.certificate.public_key()
    assert list(later.extensions) == list(old.certificate.extensions)
    assert later.not_valid_after_utc == now + timedelta(days=360)
    assert main(["renew-kit", str(workspace), name]) == 0
    after, new = files_of(kits), read_kit(kits / name)
    assert [path for path in after if after[path] != before.get(path)] == [old.certificate_path.relative_to(kits)]
    assert len(after) == len(before)
    new.certificate.verify_directly_issued_by(new.root)
    assert new.certificate.not_valid_before_utc >= old.certificate.not_valid_before_utc
    assert new.certificate.serial_number != old.certificate.serial_number
    assert main(["check-kits", str(kits / name)]) == 0


def test_a_certificate_never_outlives_the_root(workspace, kits):
    kit, record = read_kit(kits / "north"), read_json(workspace / "silofl" / "state" / "cert.json")
    end = kit.root.not_valid_after_utc
    new = renew_kit.make_renewed_certificate(kit, record["root_pri_key"], end - timedelta(days=9))
    assert new.not_valid_after_utc == end
    with pytest.raises(ConfigError, match="the root certificate must be valid, not expired on"):
        renew_kit.make_renewed_certificate(kit, record["root_pri_key"], end)
