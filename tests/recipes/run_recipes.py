"""The scripts in recipes/, called in this process."""

import contextlib
import io
import runpy
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def run_recipe(name, *arguments):
    """Call a script with arguments; returns what it printed."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(sys, "argv", [f"recipes/{name}.py", *map(str, arguments)])
        patch.syspath_prepend(RECIPES)
        runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")
    return out.getvalue()
