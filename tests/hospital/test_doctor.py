"""What a report of a fault says of a machine."""

import os
import sys
from importlib.metadata import version

from silofl import __version__
from silofl.command_line.cli import main
from silofl.command_line.command import WHEELS
from silofl_hospital.site import doctor


def test_a_report_names_versions_and_machine(capsys):
    assert main(["doctor"]) == 0
    facts = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert facts["silofl"].startswith(f"{__version__}, files ")
    assert all(facts[wheel] == version(wheel) for wheel in WHEELS)
    assert (facts["torch"], facts["NVFlare"], facts["MONAI"]) == (version("torch"), "2.9.0", version("monai"))
    assert facts["Python"] == sys.version.split()[0] and facts["cores"] == str(os.cpu_count())
    assert facts["memory"].endswith(" GiB free") and facts["disk"].endswith(" GiB free here") and facts["GPU"]


def test_a_report_says_so_where_torch_cannot_be_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert doctor.list_machine_facts()["GPU"] == "unknown, as torch cannot be loaded: ModuleNotFoundError"
