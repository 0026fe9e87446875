"""The disk space and memory that a study needs at a site, from the sizes of its models."""

from collections.abc import Sequence

from silofl.federation.server import ServerRounds
from silofl.models.networks import build_models
from silofl.models.roles import read_role
from silofl.parts.load import list_client_state
from silofl.parts.part import INSTEAD
from silofl.parts.task import COLLECT, TRAIN, Exchange
from silofl.study import Study

GIB = 1 << 30
# Python, torch, MONAI and NVFlare in the two processes of a site or server, before any model.
PROCESSES_BYTES = GIB
# Adam keeps two numbers for each parameter.
OPTIMIZER = 2
# What a site keeps: the best round, the last and the two before it, the half one, and the one that is being written.
KEPT_ROUNDS = 6


def models_bytes(study: Study) -> int:
    """Return the bytes of the models that a site trains side by side."""
    return _model_bytes(study, study.recipe.roles)


def traveling_bytes(study: Study) -> int:
    """Return the bytes of those models that travel, which are all that the server has."""
    return _model_bytes(study, study.recipe.traveling_roles)


def part_bytes(study: Study, num_sites: int) -> int:
    """Return the bytes that a round brings to a site besides the models; 0 where it brings nothing."""
    server = _start_server(study, num_sites)
    exchanges = [Exchange(TRAIN, 1)]
    if study.total_rounds > study.training_rounds:
        # The extra rounds bring other arrays than a training does.
        exchanges += server.asks(INSTEAD, study.total_rounds)
    sizes = []
    for exchange in exchanges:
        arrays = server.task(server.sites[0], exchange).arrays
        beside = [name for name in arrays if read_role(name) not in study.recipe.traveling_roles]
        sizes.append(sum(arrays[name].nbytes for name in beside))
    return max(sizes)


def home_bytes(study: Study) -> int:
    """Return the bytes of site-only state of all parts."""
    kept = sum(state.num_models for state in list_client_state(study, study.total_rounds))
    return kept * _model_bytes(study, study.recipe.roles[:1])


def _end_bytes(study: Study) -> int:
    """Return the bytes that each site sends once, at the end."""
    expected = _start_server(study, 2).payload_spec("site-1", Exchange(COLLECT, study.rounds))
    return sum(array.num_bytes for array in expected.values())


def site_disk_bytes(study: Study, num_sites: int) -> int:
    """Return the size of a site's state: its kept rounds with their optimisers, and its super models."""
    model = _model_bytes(study, study.recipe.roles[:1])
    beside = part_bytes(study, num_sites)
    kept = KEPT_ROUNDS * ((1 + OPTIMIZER) * (models_bytes(study) + beside) + home_bytes(study))
    has_all_sites = study.recipe.has_super_model or _end_bytes(study) > 0
    final = model * (num_sites + 1 if has_all_sites else 1) + beside
    # A second super model holds the site's own model besides.
    num_second = sum(state.has_second for state in list_client_state(study, study.total_rounds))
    return kept + final + num_second * (final + model)


def site_memory_bytes(study: Study) -> int:
    """Estimate a training process without images: models, gradients, optimiser, received and sent arrays."""
    models = (1 + 1 + OPTIMIZER + 2) * (models_bytes(study) + part_bytes(study, 2))
    return PROCESSES_BYTES + models + home_bytes(study)


def site_names(num_sites: int) -> list[str]:
    """Return placeholder names for a number of sites."""
    return [f"site-{number}" for number in range(1, num_sites + 1)]


def _model_bytes(study: Study, roles: Sequence[str]) -> int:
    # None leaves out the input normalisation, whose size depends on the images.
    models = build_models(study, None)
    return sum(value.nbytes for role in roles for value in models[role].state_dict().values())


def _start_server(study: Study, num_sites: int) -> ServerRounds:
    """Return a server before its first round, whose messages are weighed."""
    return ServerRounds.start(study, "estimate", site_names(num_sites), {})
