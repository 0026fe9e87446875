"""Names of files and keys of super models and answers, for all who write and read them."""

# What predict writes of its answers, and what a super model says of itself.
RECORD, HEAD = "prediction.json", "model.json"
# Of its facts: over how many images home statistics were taken, and the fingerprint of the model before.
HOME_STATISTICS = "home_statistics"
