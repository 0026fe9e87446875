"""Who may do what where, by NVFlare's own reading of each site's authorization.json."""

from __future__ import annotations

from checks import SIDES, local_policy
from kits import Kit
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.security.security import FLAuthorizer

from silofl.errors import ConfigError

RIGHTS = ("submit_job", "byoc", "manage_job", "download_job", "view", "operate", "shell_commands")


def rights_of(admin: Kit, sites: list[Kit]) -> dict[str, list[str]]:
    """Return, for each right, the sites at which a person holds it for jobs of their own.

    Args:
        admin: The person's kit; the role is the certificate's.
        sites: The kits of the server and the hospitals.

    Raises:
        ConfigError: A site's authorization.json cannot be read.
    """
    person = Person(admin.name, admin.org, admin.role)
    policies = {site.name: _policy(site) for site in sites if site.kind in SIDES}
    return {
        right: [name for name, policy in policies.items() if policy.evaluate(AuthzContext(right, person, person))[0]]
        for right in RIGHTS
    }


def _policy(site: Kit) -> FLAuthorizer:
    try:
        return FLAuthorizer(site.org, local_policy(site, "authorization.json"))
    except SyntaxError as error:
        raise ConfigError(f"local/authorization.json of {site.name!r} must be a policy; {error}") from None
