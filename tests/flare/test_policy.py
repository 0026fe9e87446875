import ast
import re
from pathlib import Path

import nvflare
import pytest

from silofl.flare.policy import COMMAND_CLASSES

ROOT = Path(nvflare.__file__).parent
# What runs at nobody's site as a job's component: tools, recipes that write jobs, and NVFlare's own processes.
ELSEWHERE = {"tool", "recipe", "recipes", "lighter", "dashboard", "private", "fuel", "job_config", "edge", "collab"}
STARTS = re.compile("^(command|cmd|.*_command|.*script_path|.*_binary|executables|python_path)$")
# Handles of a process that a class above has started.
HANDLES = {"K8sJobHandle", "_SlurmCliAdapter"}


def classes():
    """Return the name of each class of NVFlare's that a job may name, and the arguments of its constructor."""
    for path in ROOT.rglob("*.py"):
        if not {*path.relative_to(ROOT).parts} & {*ELSEWHERE, "cli.py"}:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
                    yield node.name, {arg.arg for one in made for arg in [*one.args.args, *one.args.kwonlyargs]}


@pytest.mark.slow
def test_every_class_of_nvflares_that_takes_a_command_is_known():
    found = {name for name, arguments in classes() if any(map(STARTS.match, arguments))}
    assert "ClientAPIExecutor" in found and found - HANDLES <= COMMAND_CLASSES
