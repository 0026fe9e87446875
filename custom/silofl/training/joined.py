"""What joining gave a site: the model that it chose, and how it does against the one that it trained alone."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, Strict

from silofl.algorithms.gain import Verdict
from silofl.schema import declare_optional
from silofl.training.site_score import Cases, Values, only_known_keys

FEDERATED, AVERAGED, TUNED, LOCAL, BLEND, CHOSEN = "federated", "averaged", "fine_tuned", "local", "blend", "chosen"
WORDS = {
    FEDERATED: "the federated model",
    AVERAGED: "the mean of the last rounds' models",
    TUNED: "its fine-tuned copy",
    LOCAL: "its own model",
    BLEND: "the mean of the federated and its own model's probabilities",
}
Candidate = Literal["federated", "averaged", "fine_tuned", "local", "blend"]
Difference = Annotated[float, Strict(), Field(ge=-1, le=1, allow_inf_nan=False)]
Round = Annotated[int, Strict(), Field(ge=1, le=10**7)]


@only_known_keys
@dataclass(frozen=True, kw_only=True)
class Joined:
    """One site's choice on its validation data, and on its test data the chosen model against its own.

    Attributes:
        chosen: What it keeps: federated, averaged, fine_tuned, local or blend.
        default: What it keeps without evidence against it.
        lead: On validation data, mean paired difference of chosen minus default over the units.
        margin: What a lead had to exceed.
        unit: What counts once in the test: patient, recording or case.
        num_units: Validation units of the choice.
        is_one_person: Whether all test units are of one person, so that they say nothing of another.
        validation: Candidate -> its value on validation data.
        test: federated, local and chosen -> the value on test data.
        difference: On test data, mean paired difference of chosen minus local over the units; null where there is none.
            A case without any label in truth counts 1 for a model that predicts none in it, 0 for a false alarm; the
            values above leave the former out.
        low: Lower end of its 95 % interval; null without one.
        high: Upper end.
        p_below: One-sided p-value of the chosen model's being no worse than the local one; null where they are the
            same.
        num_test_units: Test units in which both have a score.
        verdict: gains, no clear difference, loses, too few to say, or keeps its own model; of fewer than 20 units
            gains and loses are by a paired permutation test at 2.5 %.
        local_share: The local model's share in the mean of both, by how the mean does on validation data; where it
            is 0 the default is the federated model, where it is 1 the local one.
        local_since: The round in which the local model began; above 1 where the site came late or lost its state.
    """

    chosen: Candidate
    default: Candidate
    lead: Difference
    margin: Difference
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
    local_share: Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)] = declare_optional(0.5)
    local_since: Round = declare_optional(1)

    @property
    def kept(self) -> str:
        """What the site keeps, in words."""
        share = f" ({self.local_share:.0%} its own)" if self.chosen == BLEND else ""
        return f"{WORDS[self.chosen]}{share}"

    @property
    def test_units(self) -> str:
        """How many units its test has, in words."""
        within = " within one person" if self.is_one_person else ""
        return f"{self.num_test_units} {self.unit}{'' if self.num_test_units == 1 else 's'}{within}"
