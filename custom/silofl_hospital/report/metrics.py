"""What each metric measures, in a sentence."""

METRICS = {
    "dice": (
        "Foreground Dice of each case, 2 |P and T| / (|P| + |T|) over all slices of the case, mean over its labels; "
        "a site's value is the mean over its cases. Cases whose truth and prediction are both empty are excluded "
        "and counted."
    ),
    "dice_with_background": (
        "Dice of each case with the background counted as a label, and 1 for a label that is empty in truth and "
        "prediction; a site's value is the mean over its cases. It is higher than the foreground Dice: compare it "
        "only with tables that are made the same way."
    ),
    "accuracy": "Share of examples whose class is right; every example is a case.",
    "balanced_accuracy": (
        "Recall of each class, the share of its examples that are classified correctly; mean over the classes in the "
        "site's test data: a rare class counts as much as a frequent one."
    ),
    "auroc": (
        "Area under the ROC curve of one class against the rest, mean over the classes. A class counts if some test "
        "cases of the site have it and others have not; a site without such a class has no value."
    ),
    "auprc": (
        "Area under the curve of precision over recall (average precision) of one class against the rest, mean over "
        "the classes. A class counts if some test cases of the site have it and others have not; a site without such a "
        "class has no value."
    ),
}
_FINDINGS = (
    "mean over the findings. A finding counts if some test cases of the site have it and others have not; a site "
    "without such a finding has no value."
)
FINDING_METRICS = {
    "accuracy": "Share of a case's findings that are answered correctly, as present or absent; mean over the cases.",
    "balanced_accuracy": (
        "Mean of the sensitivity and the specificity of all findings, where the site's test data have cases for them: "
        "a rare finding counts as much as a frequent one."
    ),
    "auroc": f"Area under the ROC curve of one finding against its absence, {_FINDINGS}",
    "auprc": (
        f"Area under the curve of precision over recall (average precision) of one finding against its absence, "
        f"{_FINDINGS}"
    ),
}


def metric_sentence(metric: str | None, has_findings: bool = False) -> str:
    """Define a metric, of classes or of findings."""
    known = METRICS | (FINDING_METRICS if has_findings else {})
    return known.get(metric or "", f"The study's metric is {metric}." if metric else "The metric is not known here.")
