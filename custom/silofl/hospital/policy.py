"""Checks of the site's NVFlare policies: the classes that jobs may use, and code that jobs may bring."""

from __future__ import annotations

from silofl.flare.policy import PACKAGE, class_policy, site_rights
from silofl.hospital.candidate import Candidate
from silofl.hospital.finding import Finding, failed, ok, warning

# A name that no class has: allowed exactly where every class of the package is, those of later releases too.
ANY_CLASS = f"{PACKAGE}any.Class"


def allowed_classes(candidate: Candidate) -> Finding:
    """Check that ``class_allow_list`` of local/resources.json lets NVFlare build SiloFL's components."""
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
    """Check that jobs may not bring their own code, which none needs: SiloFL is installed and reviewed."""
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
