"""Studies of this room have the smallest network; a file whose facts need more of one names it as ``NETWORK``."""

import pytest

from ..conftest import SMALL_UNET, UNET


@pytest.fixture(scope="module")
def make_study(make_study, request):
    smallest = getattr(request.module, "NETWORK", SMALL_UNET)

    def make(model=None, **options):
        # The smallest has no dropout.
        network = UNET if "dropout" in (model or {}) else smallest
        return make_study(model=model, **{"network": network} | options)

    return make
