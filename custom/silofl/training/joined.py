"""What joining gave a site: the model that it keeps, and how it does against the one that it trained alone."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Strict

from silofl.base.schema import declare_optional
from silofl.core.gain import Verdict
from silofl.study.sections import Normalization
from silofl.training.site_score import Cases, Values, only_known_keys

# The models of a choice: each with its decision threshold but for `AT_ZERO`, the local one at 0.5, and `FEDERATED`,
# which is as the run tests it.
FEDERATED, LOCAL, CHOSEN = "federated", "local", "chosen"
SHIFTED, AT_ZERO = "federated_calibrated", "local_uncalibrated"
WORDS = {
    FEDERATED: "the federated model",
    LOCAL: "its local model",
}
BRIEFLY = {FEDERATED: "federated", LOCAL: "local"}
Candidate = Literal["federated", "local"]
Unfinished = Literal["own", "federated"]
Difference = Annotated[float, Strict(), Field(ge=-1, le=1, allow_inf_nan=False)]
Bias = Annotated[float, Strict(), Field(ge=-3, le=3, allow_inf_nan=False)]
Round = Annotated[int, Strict(), Field(ge=1, le=10**7)]


@only_known_keys
@dataclass(frozen=True, kw_only=True)
class ReportedLocalModel:
    """The reported model of a site that trained alone.

    Attributes:
        rounds: All its rounds.
        best_round: The round that it is taken from, chosen on the site's validation data.
        is_finished: Whether it was trained to its end.
        normalization: Its normalisation layers, of the two kinds that the site has trained; null where it is the
            study's alone.
    """

    rounds: Round
    best_round: Round
    is_finished: bool
    normalization: Normalization | None = declare_optional()


@only_known_keys
@dataclass(frozen=True, kw_only=True)
class Joined:
    """One site's choice on its validation data, and the test of the federated model against its own.

    Attributes:
        chosen: Model that the site keeps.
        bias: Shift of the decision threshold of the kept model, in log-odds of the foreground; 0 in a classification.
        local_bias: The same of the local model.
        lead: Validation value of the federated model minus the local one's, both with three decimals.
        unit: What counts as a patient below: a recording if patients are unknown, a case if both are.
        num_units: Validation patients; of a segmentation those with a label in truth.
        is_one_person: Whether all test data are of one person.
        validation: Model -> what the choice compares: mean over the validation patients of the Dice in cases with a
            label, or of the probability of the true answer. federated and local_uncalibrated without a bias,
            federated_calibrated and local with one, and chosen.
        test: Model -> test value: mean over the cases.
        by_unit: Model -> test value: mean over the patients, as in ``difference``.
        difference: Mean over the test patients of federated minus local, each with its bias, in cases with a label in
            truth.
        standard_error: Standard error of ``difference``; null below two patients.
        low: Lower end of the 95 % interval of ``difference``; null below 6 patients.
        high: Upper end.
        p_below: One-sided p-value; small = evidence that the federated model is worse than the local one; null below 20
            patients.
        num_test_units: Test patients in which both models have a score.
        verdict: better and worse by two paired tests (2.5 % on each side), from 20 patients on, for this start of the
            training only. Better requires that it is also better than the local model without a bias.
        local_rounds: All rounds of the local model.
        local_best_round: The round that it is taken from.
        local_normalization: Its normalisation layers, of the two kinds that the site has trained; null where it is the
            study's alone.
        unfinished: Which of the two models was not trained to its end.
    """

    # Release 0.4 wrote the keys on the left.
    RENAMED_KEYS: ClassVar = {
        "own_bias": "local_bias",
        "own_rounds": "local_rounds",
        "own_best_round": "local_best_round",
        "own_normalization": "local_normalization",
    }
    FORMER_KEYS: ClassVar = ("needed_units", "own_gain", "local_since", "rises")
    chosen: Candidate
    bias: Bias
    local_bias: Bias
    lead: Difference
    unit: Literal["patient", "recording", "case"]
    num_units: Cases
    is_one_person: bool
    validation: Values
    test: Values
    difference: Difference | None
    standard_error: Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)] | None
    low: Difference | None
    high: Difference | None
    p_below: Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)] | None
    num_test_units: Cases
    verdict: Verdict
    by_unit: Values | None = declare_optional()
    local_rounds: Round
    local_best_round: Round
    local_normalization: Normalization | None = declare_optional()
    unfinished: tuple[Unfinished, ...] = declare_optional(())

    def tested(self, model: str) -> float | None:
        """Return a model's value on test data; None where it has none."""
        return self.test.get(model)

    def shown(self, model: str) -> float | None:
        """Return what stands beside the difference: a model's mean over the test units; over the cases if unknown."""
        return (self.by_unit or self.test).get(model)

    @property
    def kept(self) -> str:
        """What the site keeps, in words."""
        return f"{WORDS[self.chosen]}{describe_bias(self.bias)}"

    @property
    def kept_briefly(self) -> str:
        """The same for a column of a table."""
        return f"{BRIEFLY[self.chosen]}{describe_bias(self.bias, 'threshold')}"

    @property
    def said(self) -> str:
        """The verdict, with which models were not trained to the end."""
        # The record says `own` for the local model, as release 0.4 did.
        names = [BRIEFLY[FEDERATED if model == FEDERATED else LOCAL] for model in self.unfinished]
        return f"{' and '.join(names)} {self.verdict}" if names else self.verdict

    @property
    def test_units(self) -> str:
        """How many units its test has, in words."""
        plural = "" if self.num_test_units == 1 else "s"
        within = " within one person" if self.is_one_person else ""
        return f"{self.num_test_units} {self.unit}{plural}{within}"


def describe_bias(bias: float, name: str = "decision threshold") -> str:
    """Return a bias as the decision threshold that it makes, as the end of a sentence; nothing of 0.5."""
    # With a bias b the foreground is called from the probability 1 / (1 + e^b) on.
    return f", {name} {1 / (1 + math.exp(bias)):.2f}" if bias else ""
