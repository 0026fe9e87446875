"""What the site's own NVFlare lets in: the classes of jobs, and code that a job brings along."""

from __future__ import annotations

from silofl.flare.policy import PACKAGE, class_policy, site_rights
from silofl.hospital.candidate import Candidate
from silofl.hospital.finding import Finding, failed, ok, warning

# Stands for every class of the package, of which a later release may have more.
ANY_CLASS = f"{PACKAGE}any.Class"


def allowed_classes(candidate: Candidate) -> Finding:
    """Say whether NVFlare may build SiloFL's components, as ``class_allow_list`` of local/resources.json says."""
    policy = class_policy(candidate.kit)
    is_allowed = policy.allows(ANY_CLASS)
    if policy.gap:
        return (warning if is_allowed else failed)(policy.gap)
    if not is_allowed:
        return failed(
            f"class_allow_list in local/{policy.file} must hold {PACKAGE!r}, not only {len(policy.allowed)} other "
            "entries; copy resources.json.default to resources.json and add it there"
        )
    return ok(f"class_allow_list in local/{policy.file} holds {PACKAGE!r}", entries=len(policy.allowed))


def brought_code(candidate: Candidate) -> Finding:
    """Say whether jobs may bring code of their own: SiloFL is installed and reviewed, so none needs to."""
    rights = site_rights(candidate.kit)
    # The site's own people have at least the rights that others of their role have.
    roles = [role for role in rights.roles if rights.has("byoc", "anybody", candidate.kit.org, role)]
    if roles:
        return warning(
            f"byoc in local/{rights.file} must be 'none' for every role, not allowed to {', '.join(roles)}: their jobs "
            "could bring code that nobody here has reviewed; SiloFL's jobs bring none",
            roles=roles,
        )
    return ok(f"byoc in local/{rights.file} is allowed to nobody: only the code installed here runs", roles=[])
