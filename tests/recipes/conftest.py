from tests.data.conftest import deny, site, study  # noqa: F401
