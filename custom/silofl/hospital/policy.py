"""What the site's own NVFlare lets in: the classes of jobs, and code that a job brings along."""

from __future__ import annotations

from silofl.hospital.answer import Answer, failed, ok, warning
from silofl.hospital.candidate import Candidate

PREFIX = "silofl."
EVERY_CLASS = "*"


def allowed_classes(candidate: Candidate) -> Answer:
    """Say whether NVFlare may build SiloFL's components, as ``class_allow_list`` of local/resources.json says."""
    name, resources = candidate.kit.local("resources.json")
    allowed = resources.get("class_allow_list", [])
    if EVERY_CLASS in allowed:
        return warning(
            f"class_allow_list in local/{name} must name the classes that may run, not '*', which lets every class "
            f"in; write {PREFIX!r} in its place"
        )
    if PREFIX not in allowed:
        return failed(
            f"class_allow_list in local/{name} must hold {PREFIX!r}, not only {len(allowed)} other entries; copy "
            "resources.json.default to resources.json and add it there"
        )
    mode = resources.get("class_list_enforcement_mode", "enforce")
    if mode != "enforce":
        return warning(f"class_list_enforcement_mode in local/{name} must be 'enforce', not {mode!r}; change it")
    return ok(f"class_allow_list in local/{name} holds {PREFIX!r}", entries=len(allowed))


def brought_code(candidate: Candidate) -> Answer:
    """Say whether jobs may bring code of their own: SiloFL is installed and reviewed, so none needs to."""
    name, policy = candidate.kit.local("authorization.json")
    permissions = policy.get("permissions", {})
    roles = [role for role, rights in permissions.items() if _may_bring_code(rights)]
    if roles:
        return warning(
            f"byoc in local/{name} must be 'none' for every role, not allowed to {', '.join(roles)}: their jobs could "
            "bring code that nobody here has reviewed; SiloFL's jobs bring none",
            roles=roles,
        )
    return ok(f"byoc in local/{name} is allowed to nobody: only the code installed here runs", roles=[])


def _may_bring_code(rights: object) -> bool:
    right = rights.get("byoc", "none") if isinstance(rights, dict) else rights
    return right != "none"
