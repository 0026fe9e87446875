"""The methods that a comparison knows by name."""

# What takes the place of the first job's ``algorithm`` section.
METHODS: dict[str, dict[str, object]] = {
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox"},
    "fedper": {"name": "fedper"},
    "fedbn": {"name": "fedbn"},
    "fedbn-pretrained": {"name": "fedbn", "start_from_pretrained": True},
    "adafed": {"name": "adafed", "preset": "paper"},
    "adafed-from-scratch": {"name": "adafed", "preset": "paper", "start_from_pretrained": False},
    "d-adafed": {"name": "adafed", "preset": "paper", "statistics_layers": "last"},
    "f-adafed": {"name": "adafed", "preset": "recommended"},
    "harmofl": {"name": "harmofl"},
    "finetuning": {"name": "finetuning"},
    "softpull": {"name": "softpull"},
    "fedsm": {"name": "fedsm"},
    "fedsm-extra": {"name": "fedsm", "selector_labels": "best_model", "extra_rounds": 50},
}
