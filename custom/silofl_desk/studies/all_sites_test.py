"""Test each site's model on the test data of all sites, which only a simulation has in one place.

A site with few classes may do well at home with a model that knows no others; this test shows it.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from silofl.data.parts import join_examples
from silofl.data.site_data import SiteData
from silofl.federation.results import AllSitesTest
from silofl.training.device import choose_device, set_threads
from silofl.training.evaluation import evaluate
from silofl_desk.studies.leave_out import assemble_models, load_site_networks


def measure_at_all_sites(run: Path, data: Mapping[str, SiteData]) -> AllSitesTest:
    """Test each site's own model of a finished classification run on all sites' test data.

    Args:
        run: Folder of the finished run.
        data: Site -> its data.

    Raises:
        ConfigError: No site kept its model, or one is broken.
    """
    contents, together = assemble_models(run), join_examples({site: own.test for site, own in data.items()})
    study, device = contents.study, choose_device(contents.study.device)
    set_threads("auto")
    networks = load_site_networks(contents, device)
    scores = {site: evaluate(model, together, study, device)[1].also for site, model in networks}
    accuracy, balanced = (
        float(np.mean([own[key] for own in scores.values()])) for key in ("accuracy", "balanced_accuracy")
    )
    return AllSitesTest(accuracy, balanced, scores, len(set(together.cases)))
