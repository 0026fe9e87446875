import pytest

from silofl.importing.importers import ImportOptions, import_layout

from ..data.conftest import deny, site, study  # noqa: F401


@pytest.fixture
def run(request, source, tmp_path):
    """Import a set, the file's `source` where no other is given, in the layout that the file names."""

    def go(place=source, **options):
        return import_layout(request.module.LAYOUT, place, tmp_path / "target", ImportOptions(**options))

    return go
