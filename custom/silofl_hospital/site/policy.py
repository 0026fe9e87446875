"""Checks of the site's policies: studies pinned, classes that jobs may use, code that they bring."""

from silofl.base.errors import ConfigError, PinError
from silofl.flare.egress import list_open_scopes
from silofl.flare.policy import (
    SERVER_CLASSES,
    SITE_CLASSES,
    WITHOUT_JOB_FILES,
    checks_files,
    list_old_rights,
    list_replaced,
    read_class_policy,
    read_site_rights,
    streams_logs,
)
from silofl.parts.part import BEFORE
from silofl.parts.task import TRAIN, Exchange
from silofl.setup.extensions import check_extensions
from silofl.setup.site import count_partners
from silofl_hospital.site.candidate import Candidate, Participant
from silofl_hospital.site.finding import Finding, expect, failed, ok, warning


def check_pin(candidate: Candidate) -> Finding:
    """Print the study's digest, and compare it with what site.yaml pins."""
    study = candidate.study
    pins = candidate.settings.studies
    lead = pins[study.name].lead if study.name in pins else None
    # The sentence of a job tells the study lead what to do; here the hospital reads it.
    remedy = "ask the study lead, by telephone, which digest was agreed on, and write it under studies in site.yaml"
    try:
        # Who will submit the study is not known yet.
        candidate.settings.check_pinned(study.name, study.digest, {lead}, study.federation.named)
        # A study that is pinned may still lack the privacy that the site asks for.
        remedy = "ask the study lead for such a study, or stay out of it"
        candidate.settings.check_private(study.name, study.promise)
    except PinError as error:
        return failed(f"{str(error).partition('; ')[0]}; {remedy}", sha256=study.digest)
    whose = f"pinned, for lead {lead}" if lead else "not pinned: site.yaml has no studies, so that any may come"
    return expect(
        not study.federation.named or candidate.kit.name in study.federation.named,
        f"the digest of study {study.name} is {study.digest}; {whose}",
        f"federation.sites of the study must name this hospital, {candidate.kit.name}, not only "
        f"{', '.join(study.federation.named)}; ask the study lead to add it",
        sha256=study.digest,
    )


def check_pause(candidate: Candidate) -> Finding:
    """Say whether ``paused`` of site.yaml stops the study."""
    study = candidate.study.name
    # No failure: a weekly check of a site that is paused on purpose finds all well with it.
    if study in candidate.settings.paused:
        return warning(
            f"study {study} is paused in site.yaml: the site may join, but answers no task of it; to take part again, "
            "remove its name from paused",
            paused=True,
        )
    return ok(f"study {study} is not paused", paused=False)


def check_classes(candidate: Participant) -> Finding:
    """Check that ``class_allow_list`` of local/resources.json names SiloFL's components, and exact classes only."""
    policy = read_class_policy(candidate.kit)
    if policy.gap:
        return failed(policy.gap)
    needed = SERVER_CLASSES if candidate.kit.kind == "server" else SITE_CLASSES
    missing = [name for name in needed if not policy.allows(name)]
    if missing:
        return failed(
            f"class_allow_list in local/{policy.file} lacks {', '.join(missing)}, which jobs need; add what is "
            "missing, or take the list of site_configs/"
        )
    return expect(
        not policy.others,
        f"class_allow_list in local/{policy.file} names {len(policy.allowed)} exact classes and nothing else",
        f"class_allow_list in local/{policy.file} must name only what SiloFL's jobs need, not also "
        f"{', '.join(map(repr, policy.others))}: any job may have these built with its own arguments; delete what no "
        "other study here needs",
        is_serious=False,
        others=policy.others,
    )


def check_job_files(candidate: Participant) -> Finding:
    """Check that jobs may bring SiloFL's files alone, whose names NVFlare takes for nothing else."""
    fine = "local/resources.json keeps out jobs with other files than a study, its configurations and a model"
    return expect(checks_files(candidate.kit), fine, WITHOUT_JOB_FILES)


def check_brought_code(candidate: Candidate) -> Finding:
    """Check that jobs may not bring their own code, which none needs: SiloFL is installed and reviewed.

    A site may trust its own people with it, but not those of others.
    """
    rights = read_site_rights(candidate.kit)
    # The site's own people have at least the rights that others of their role have.
    roles = [role for role in rights.roles if rights.has("byoc", "anybody", candidate.kit.org, role)]
    outsiders = [role for role in rights.roles if rights.has("byoc", "anybody", f"not {candidate.kit.org}", role)]
    if outsiders:
        whose = f"{', '.join(outsiders)} of any organisation"
    else:
        whose = f"{', '.join(roles)} of this one"
    return expect(
        not roles,
        f"byoc in local/{rights.file} is allowed to nobody: only the code installed here runs",
        f"byoc in local/{rights.file} must be 'none' for every role, not allowed to {whose}: their jobs could bring "
        "code that nobody here has reviewed; SiloFL's jobs bring none",
        is_serious=bool(outsiders),
        roles=outsiders or roles,
    )


def check_rights(candidate: Candidate) -> Finding:
    """Check that nobody has a right here that an earlier release gave, and this one took back."""
    old = "; ".join(list_old_rights(candidate.kit))
    return expect(not old, "local/authorization.json lets leads alone submit studies, and none stop this site", old)


def check_egress(candidate: Candidate) -> Finding:
    """Check that what leaves passes SiloFL's filter, in the scope that NVFlare gives to jobs."""
    if not (candidate.kit.folder / "local" / "privacy.json").is_file():
        return failed(
            "local/privacy.json is missing, so that answers would leave unrecorded; take the one that came with the kit"
        )
    try:
        scopes = list_open_scopes(candidate.kit)
    except ConfigError as error:
        # A sentence on a policy names no case and no path of the data.
        return failed(str(error))
    named = ", ".join(map(repr, scopes))
    return expect(
        not scopes,
        "local/privacy.json has every answer recorded, and refused where site.yaml does not let it leave",
        f"local/privacy.json leaves the filters of SiloFL out of {named}, which a job gets that names it: SiloFL does "
        "not begin there, but what else runs here sends unrecorded; add RunNote and Egress to it, or delete the scope",
        is_serious=False,
        scopes=scopes,
    )


def check_partners(candidate: Candidate) -> Finding:
    """Compare the number of sites in the study with the partners that site.yaml asks for."""
    study = candidate.study
    asked = candidate.settings.min_partners
    server = candidate.server
    sites = study.federation.num_sites
    names: list[str] = []
    for exchange in (Exchange(TRAIN, 1), *server.asks(BEFORE, 1)):
        names += server.payload_spec(candidate.kit.name, exchange)
    if not any(map(server.is_mixed, names)):
        return ok("nothing of this study is mixed with other sites' answers: may_leave alone decides what leaves")
    if not asked:
        return warning(
            "min_partners of site.yaml must be at least 1 to keep the study from making a model of this site's "
            "patients alone, not 0; raise it"
        )
    return expect(
        sites is None or sites - 1 >= asked,
        f"the server mixes this site's answer with those of at least {count_partners(asked)}, or not at all, as "
        f"min_partners of site.yaml asks; egress.jsonl says how many it has by its own word; {study.recipe.delivered}",
        f"min_partners of site.yaml must be less than the study's {sites} sites (federation.sites), of which one is "
        f"this, not {asked}; ask the study lead for more sites, or lower it",
    )


def check_logs(candidate: Candidate) -> Finding:
    """Say whether the site's log may go to the server, and refuse what would keep jobs from beginning for it."""
    if replaced := list(list_replaced(candidate.kit)):
        return failed(replaced[0])
    return expect(
        not streams_logs(candidate.kit),
        "allow_log_streaming in local/resources.json keeps the site's log here",
        "allow_log_streaming in local/resources.json must be false to keep the site's log here, which may name a "
        "patient's file, not true; set it to false, unless no file's name names a patient",
        is_serious=False,
    )


def check_packages(candidate: Candidate) -> Finding:
    """Check that the site has allowed and installed the parts of packages that the study names; imports none of them.

    Raises:
        ExtensionError: It has not, or in another version.
    """
    check_extensions(candidate.study.extensions)
    names = sorted({name for *_, name in candidate.study.extensions})
    if not names:
        return ok("the study names no network, loss, transform or metric of another package", extensions=[])
    return ok(
        f"site.yaml allows what the study names of packages, and they are installed: {', '.join(names)}",
        extensions=names,
    )
