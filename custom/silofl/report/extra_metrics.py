"""Metrics of packages in runs' results: the columns of tables, and what is said of them."""

from collections.abc import Iterable

from silofl.federation.results import Results


def list_extra_metrics(runs: Iterable[Results]) -> dict[str, str]:
    """Return ``package==version/name`` of each metric that some runs were tested by -> the head of its column."""
    tests = [scores for run in runs for scores in (run.tested.extra_metrics or {}).values()]
    return {name: name.rpartition("/")[2] for scores in tests for name in scores}


def list_extra_values(results: Results, name: str) -> list[float | None]:
    """Return a package's metric of each site, in the order of the result's sites."""
    scores = [(results.tested.extra_metrics or {}).get(site, {}).get(name) for site in results.sites]
    return [score and score.value for score in scores]


def describe_extra_metric(name: str) -> str:
    """Say what the column of a package's metric is."""
    package, _, part = name.rpartition("/")
    return f"{part} is a metric of the package {package}, mean over the cases in which it is defined; it chose nothing."


def extra_metrics_sentence(results: Results) -> str:
    """Say what the metrics of packages are, of how many cases, and where they failed; nothing without any."""
    sentences = []
    for name in list_extra_metrics([results]):
        scores = {site: one[name] for site, one in (results.tested.extra_metrics or {}).items() if name in one}
        counted = [f"{site} {score.num_cases}" for site, score in scores.items() if not score.has_failed]
        failed = [site for site, score in scores.items() if score.has_failed]
        sentences.append(describe_extra_metric(name))
        sentences += [f"Cases: {', '.join(counted)}."] if counted else []
        sentences += [f"It failed at {', '.join(failed)}; the site's own log says how."] if failed else []
    return " ".join(sentences)
