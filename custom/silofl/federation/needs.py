"""Room that a study needs on disks and in memory, from the sizes of its own models."""

from __future__ import annotations

from silofl.models.members import Members
from silofl.models.selector import build_selector
from silofl.study import Study

GIB = 1 << 30
# Python, torch, MONAI and NVFlare in the two processes of a site or server, before any model.
PROCESSES_BYTES = GIB
# Adam keeps two numbers for each parameter.
OPTIMIZER = 2
# What a site keeps: the best round, the one before and the last, and the one that is being written.
KEPT_ROUNDS = 4
# What the server holds of each site's model: the last, the best, the answer, the mixed one and the one being sent.
SERVER_COPIES = 5


def models_bytes(study: Study) -> int:
    """Return the bytes of the task models that a site trains side by side."""
    return sum(value.nbytes for value in Members.build(study, None).state().values())


def selector_bytes(study: Study, num_sites: int) -> int:
    """Return the bytes of the study's selector; 0 where it has none."""
    if not study.recipe.has_selector:
        return 0
    return sum(value.nbytes for value in build_selector(study, num_sites, study.seed).state_dict().values())


def site_disk_bytes(study: Study, num_sites: int) -> int:
    """Return what a site's state takes: its kept rounds with their optimisers, and the super model."""
    models, selector = models_bytes(study), selector_bytes(study, num_sites)
    kept = KEPT_ROUNDS * (1 + OPTIMIZER) * (models + selector)
    return kept + models * (num_sites + 1) + selector


def site_memory_bytes(study: Study) -> int:
    """Return about what a training process takes without images: models, gradients, optimiser, received and sent."""
    return PROCESSES_BYTES + (1 + 1 + OPTIMIZER + 2) * (models_bytes(study) + selector_bytes(study, 2))


def server_memory_bytes(study: Study, num_sites: int) -> int:
    """Return about what the server takes for all sites at once."""
    models, selector = models_bytes(study), selector_bytes(study, num_sites)
    # One selector and its two moments, and for each site one on the way there and one on the way back.
    return PROCESSES_BYTES + SERVER_COPIES * num_sites * models + (1 + OPTIMIZER + 2 * num_sites) * selector


def server_disk_bytes(study: Study, num_sites: int) -> int:
    """Return about what the server writes: two checkpoints of the last and the best models, and the super model."""
    models, selector = models_bytes(study), selector_bytes(study, num_sites)
    kinds = 1 if study.recipe.mixing == "shared" and not study.recipe.extra_rounds else num_sites
    checkpoint = 2 * (kinds * models + (1 + OPTIMIZER) * selector)
    return 2 * checkpoint + kinds * models + selector
