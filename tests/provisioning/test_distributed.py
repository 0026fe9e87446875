import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from provisioning.checks import find_private_keys
from provisioning.workspace import REPOSITORY
from silofl.flare.kit import read_kit

from .conftest import desk_beside, hospital_beside

# Some twenty processes, as the page has them; what fills and checks kits is tried in seconds beside this file.
pytestmark = [pytest.mark.long, pytest.mark.slow]


def documented_commands():
    """Return the commands under "The distributed way" of the study lead's page, as one script."""
    text = (REPOSITORY / "docs" / "study-lead.md").read_text(encoding="utf-8")
    section = text.partition("## The distributed way")[2].partition("\n## ")[0]
    return "\n".join(re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL))


def test_documented_commands_make_kits_and_move_no_private_key(tmp_path, wheel):
    for name in ("provisioning", "site_configs", "jobs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    for one in (wheel, hospital_beside(wheel), desk_beside(wheel)):
        (tmp_path / one.name).write_bytes(one.read_bytes())
    # NVFlare keeps a record of requests in the home folder.
    environment = os.environ | {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", documented_commands()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all is right") == 3
    for name, kind in (("server.example.org", "server"), ("north", "hospital"), ("lead@study.example.org", "admin")):
        kit = read_kit(tmp_path / "kits" / "silofl" / "prod_00" / name)
        assert (kit.name, kit.kind, kit.address.host, kit.address.port) == (name, kind, "server.example.org", 8002)
        kit.certificate.verify_directly_issued_by(kit.root)
        assert (tmp_path / "ca" / "rootCA.pem").read_bytes() == (kit.folder / "startup" / "rootCA.pem").read_bytes()
    travelling = [*tmp_path.glob("request/*/*.request.zip"), *tmp_path.glob("*.signed.zip")]
    assert len(travelling) == 6
    for archive in travelling:
        opened = tmp_path / "opened" / archive.name
        zipfile.ZipFile(archive).extractall(opened)
        assert any(opened.iterdir()) and find_private_keys(opened) == []
