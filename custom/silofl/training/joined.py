"""What joining gave a site: the model that it keeps, and how it does against the one that it trained alone."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, Strict

from silofl.algorithms.gain import Verdict
from silofl.schema import declare_optional
from silofl.training.site_score import Cases, Values, only_known_keys

# The models of a choice: each with its decision bias but for `AT_ZERO`, the own one without, and `FEDERATED`, which is
# as the run tests it.
FEDERATED, LOCAL, BLEND, CHOSEN = "federated", "local", "blend", "chosen"
SHIFTED, AT_ZERO = "federated_calibrated", "local_uncalibrated"
WORDS = {
    FEDERATED: "the federated model",
    LOCAL: "its own model",
    BLEND: "the mean of the federated and its own model's probabilities",
}
Candidate = Literal["federated", "local", "blend"]
Difference = Annotated[float, Strict(), Field(ge=-1, le=1, allow_inf_nan=False)]
Bias = Annotated[float, Strict(), Field(ge=-3, le=3, allow_inf_nan=False)]
Round = Annotated[int, Strict(), Field(ge=1, le=10**7)]
# Beyond it nobody is told how many units would do.
MOST_NEEDED = 1000
# What a threshold must gain on test data to be spoken of: two decimals are shown.
LEAST_OWN_GAIN = 0.01


@only_known_keys
@dataclass(frozen=True, kw_only=True)
class Joined:
    """One site's choice on its validation data, and on its test data the kept model against its own.

    Attributes:
        chosen: What it keeps: federated, local, or blend, the mean of both models' probabilities.
        local_share: The local model's share in what it keeps: 0 of federated, 1 of local.
        bias: What is added to the log-odds of the foreground in what it keeps; 0 in a classification.
        own_bias: The same of its own model, which is local in `validation` and `test`.
        lead: On validation data, mean score of the best mean of both models minus that of its own model.
        unit: What counts once in the test: patient, recording or case.
        num_units: Validation units of the choice.
        is_one_person: Whether all test units are of one person, so that they say nothing of another.
        validation: federated, federated_calibrated, local, local_uncalibrated and chosen -> the value on validation
            data: the federated model as the run tests it, and with a bias of its own; the own model with its bias, and
            without; and what it keeps.
        test: The same on test data.
        difference: On test data, mean paired difference of chosen minus local over the units; null where there is none.
            A case without any label in truth counts 1 for a model that predicts none in it, 0 for a false alarm; the
            values above leave the former out.
        low: Lower end of its 95 % interval; null of fewer than 6 units.
        high: Upper end.
        p_below: One-sided p-value of the chosen model's being no worse than the local one; null where they are the
            same.
        num_test_units: Test units in which both have a score.
        verdict: gains, no clear difference, loses, too few to say, or keeps its own model; gains and loses are by
            a paired permutation test at 2.5 %, whose the interval is. It gains only if it also does against the own
            model without a bias.
        needed_units: About how many test units would do for a verdict, where they are too few to say.
        own_gain: On test data, mean paired difference of the own model with its bias minus without; null where there is
            none.
        local_since: The round in which the local model began; above 1 where the site came late or lost its state.
    """

    chosen: Candidate
    local_share: Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
    bias: Bias
    own_bias: Bias
    lead: Difference
    unit: Literal["patient", "recording", "case"]
    num_units: Cases
    is_one_person: bool
    validation: Values
    test: Values
    difference: Difference | None
    low: Difference | None
    high: Difference | None
    p_below: Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)] | None
    num_test_units: Cases
    verdict: Verdict
    needed_units: Cases | None = declare_optional()
    own_gain: Difference | None = declare_optional()
    local_since: Round = declare_optional(1)

    def tested(self, model: str) -> float | None:
        """Return a model's value on test data; None where it has none."""
        return self.test.get(model)

    @property
    def kept(self) -> str:
        """What the site keeps, in words."""
        share = f" ({self.local_share:.0%} its own)" if self.chosen == BLEND else ""
        return f"{WORDS[self.chosen]}{share}{describe_bias(self.bias)}"

    @property
    def said(self) -> str:
        """The verdict; where units are too few, with how many would do."""
        if self.needed_units is None:
            return self.verdict
        about = f"about {self.needed_units}" if self.needed_units <= MOST_NEEDED else f"more than {MOST_NEEDED}"
        return f"{self.verdict}: {about} {self.unit}s would do"

    @property
    def threshold(self) -> str:
        """What the own model gains by its threshold, and what joining adds; empty where the threshold does little."""
        if self.own_gain is None or self.own_gain < LEAST_OWN_GAIN:
            return ""
        return f"its own model gains {self.own_gain:.2f} by its threshold; joining adds {self.difference or 0.0:.2f}"

    @property
    def test_units(self) -> str:
        """How many units its test has, in words."""
        within = " within one person" if self.is_one_person else ""
        return f"{self.num_test_units} {self.unit}{'' if self.num_test_units == 1 else 's'}{within}"


def describe_bias(bias: float) -> str:
    """Return a decision bias as the end of a sentence; nothing of none."""
    return f", decision bias {bias:+.1f}" if bias else ""
