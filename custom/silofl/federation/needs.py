"""The disk space and memory that a study needs, from the sizes of its models."""

from __future__ import annotations

from silofl.methods.parts import start_parts
from silofl.models.networks import build_models
from silofl.study import Study

GIB = 1 << 30
# Python, torch, MONAI and NVFlare in the two processes of a site or server, before any model.
PROCESSES_BYTES = GIB
# Adam keeps two numbers for each parameter.
OPTIMIZER = 2
# What a site keeps: the best round, the one before and the last, and the one that is being written.
KEPT_ROUNDS = 4
# The guard's at a site: the local model and its best round; the federated one's best round, mean and fine-tuned copy.
GUARDED_COPIES = 5
# What the server holds of each site's model: the last, the best, the answer, the mixed one and the one being sent.
SERVER_COPIES = 5


def models_bytes(study: Study) -> int:
    """Return the bytes of the models that a site trains side by side."""
    models = build_models(study, None).values()
    return sum(value.nbytes for model in models for value in model.state_dict().values())


def guard_bytes(study: Study) -> int:
    """Return the bytes of a model that a site trains alone beside the others; 0 without the guard."""
    return models_bytes(study) // len(study.recipe.roles) if study.is_guarded else 0


def beside_bytes(study: Study, num_sites: int) -> int:
    """Return the bytes of what learns besides the models; 0 where nothing does."""
    sites = [f"site-{number}" for number in range(1, num_sites + 1)]
    return sum(part.num_bytes for part in start_parts(study, sites, {}).values())


def site_disk_bytes(study: Study, num_sites: int) -> int:
    """Return the size of a site's state: its kept rounds with their optimisers, and the super model."""
    models, beside = models_bytes(study), beside_bytes(study, num_sites)
    kept = KEPT_ROUNDS * ((1 + OPTIMIZER) * (models + beside) + (GUARDED_COPIES + OPTIMIZER) * guard_bytes(study))
    return kept + models * (num_sites + 1) + beside + 2 * guard_bytes(study)


def site_memory_bytes(study: Study) -> int:
    """Estimate a training process without images: models, gradients, optimiser, received and sent arrays."""
    models = PROCESSES_BYTES + (1 + 1 + OPTIMIZER + 2) * (models_bytes(study) + beside_bytes(study, 2))
    return models + (1 + OPTIMIZER + GUARDED_COPIES) * guard_bytes(study)


def server_memory_bytes(study: Study, num_sites: int) -> int:
    """Estimate the server's memory for all sites at once."""
    models, beside = models_bytes(study), beside_bytes(study, num_sites)
    # One of it with its two moments, and for each site one on the way there and one on the way back.
    return PROCESSES_BYTES + SERVER_COPIES * num_sites * models + (1 + OPTIMIZER + 2 * num_sites) * beside


def server_disk_bytes(study: Study, num_sites: int) -> int:
    """Estimate what the server writes: checkpoints of the last and best models, and the super model."""
    models, beside = models_bytes(study), beside_bytes(study, num_sites)
    kinds = 1 if study.recipe.mixing is None and not study.recipe.extra_rounds else num_sites
    checkpoint = 2 * (kinds * models + (1 + OPTIMIZER) * beside)
    # The last checkpoint, the one before it, and the one that is being written.
    return 3 * checkpoint + kinds * models + beside
