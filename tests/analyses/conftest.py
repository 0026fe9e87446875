from ..studies.conftest import phantoms  # noqa: F401
